"""The parts of the comparison that only compute, and that docs/comparison.md answers every question."""
# ruff: noqa: E402 - the benches are run from the repository: they belong to no package to import from

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from devhost_testing.trees import Tree

from bench.peers import __main__ as program
from bench.peers.machine import facts_of, nodes
from bench.peers.mishaps import EDITED, EDITS, TYPOS
from bench.peers.outcome import Outcome, Question, ended, merged, table
from bench.peers.plugins import DEVHOST, EVERYONE, PEERS
from bench.peers.programs import reason as said_by_go
from bench.peers.running import ready, serving
from bench.peers.texts import complaint, message, together

SMAPS = """\
55d0c0000000-55d0c0100000 r--p 00000000 08:01 42                         /usr/bin/thing
Rss:                 100 kB
Pss:                  50 kB
Anonymous:             0 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0                          [heap]
Rss:                 300 kB
Pss:                 300 kB
Anonymous:           300 kB
"""


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome(), "-"),
        (Outcome(words="not within 15 s"), "not within 15 s"),
        (Outcome((0.123,)), "0.123 s"),
        (Outcome((1.0, 3.0, 2.0)), "2.00 s (worst 3.00; n=3)"),
        (Outcome((40.0,), "MB", "2 processes"), "40.0 MB; 2 processes"),
    ],
)
def test_a_cell_has_the_median_the_worst_and_the_number_of_samples(outcome: Outcome, text: str) -> None:
    assert outcome.text == text


def test_the_table_has_a_row_per_question_and_a_dash_for_missing_results() -> None:
    cells = {("a", "one"): Outcome((1.0,)), ("b", "two"): Outcome(words="x | y")}
    questions = [Question("a", "first"), Question("b", "second")]
    assert table(questions, ["one", "two"], cells).splitlines() == [
        "|  | one | two |",
        "|---|---|---|",
        "| first | 1.00 s | - |",
        "| second | - | x \\| y |",
    ]


def test_results_for_one_question_are_merged_with_all_samples() -> None:
    both = merged([Outcome((1.0,), "s", "slow"), Outcome((2.0, 3.0), "s", "slow"), Outcome(words="never")])
    assert both.samples == (1.0, 2.0, 3.0)
    assert both.words == "slow; never"


def test_the_end_of_a_process_is_shown_with_its_last_message() -> None:
    assert ended(1, "no kubelet") == "exit 1: `no kubelet`"
    assert ended(None, "") == "keeps running"
    assert len(ended(1, "x" * 500)) < 200


def test_the_cause_in_a_log_is_the_error_not_the_stack_trace() -> None:
    assert complaint("") == ""
    log = "I1122 07:00:00.1 42 main.go:1] starting\nE1122 07:00:00.2 42 main.go:2] it failed\n"
    assert complaint(log) == "it failed"
    assert complaint(f"{log}main.run\n\t/src/main.go:3\nruntime.goexit\n") == "it failed"
    assert complaint("panic: out of range\n\ngoroutine 1 [running]:\nmain.main()\n") == "panic: out of range"
    assert complaint("flag provided but not defined: -x\nUsage:\n  -y\n    \tsomething\n").startswith("flag")
    assert complaint("2026/11/22 07:00:00 Error: no adapter\n") == "Error: no adapter"


def test_shared_mappings_count_once_and_private_memory_of_each_process() -> None:
    assert together([SMAPS]) == pytest.approx(400 * 1024 / 1e6)
    assert together([SMAPS, SMAPS]) == pytest.approx(700 * 1024 / 1e6)
    assert together([]) == 0


def test_a_uevent_is_a_netlink_request_in_the_format_of_the_kernel() -> None:
    sent = message("add", "pci", "/sys/devices/pci0000:00/0000:00:1f.0")
    assert struct.unpack("=IHH", sent[:8]) == (len(sent), 16, 1)
    head, *facts, rest = sent[16:].decode().split("\0")
    assert head == "add@/devices/pci0000:00/0000:00:1f.0"
    assert facts == ["ACTION=add", "DEVPATH=/devices/pci0000:00/0000:00:1f.0", "SUBSYSTEM=pci"]
    assert rest == ""


def test_the_nodes_of_a_machine_include_those_that_are_not_in_sysfs(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.device("virtual/misc/kvm", "misc", "kvm", "10:232")
    tree.file("/dev/nvidia0", "c195:0")
    assert set(nodes(tmp_path)) == {("kvm", 0o020000, 10, 232), ("nvidia0", 0o020000, 195, 0)}
    assert facts_of("MAJOR=10\n\nDEVNAME=kvm\n") == {"MAJOR": "10", "DEVNAME": "kvm"}


def test_the_reason_of_a_failed_go_build_is_one_line() -> None:
    assert said_by_go('{\n\t"Path": "x",\n\t"Error": "x@v1: 403 Forbidden\\n\\tserver response"\n}\n') == (
        "x@v1: 403 Forbidden"
    )
    assert said_by_go("go: downloading x v1\nmain.go:1: syntax error\n") == "main.go:1: syntax error"
    assert said_by_go("") == "no reason given"


def test_the_configurations_contain_the_text_of_the_edits(tmp_path: Path) -> None:
    assert EDITS.keys() == EDITED.keys() == TYPOS.keys()
    for plugin in EVERYONE:
        file = plugin.configuration(tmp_path)
        assert (file is not None) == (plugin.title in EDITS)
        if file is not None:
            text = file.read_text(encoding="utf-8")
            assert EDITS[plugin.title][0] in text
            assert TYPOS[plugin.title][0] in text


def test_devhost_offers_the_devices_of_all_peers() -> None:
    assert DEVHOST.offers.keys() == {name for peer in PEERS for name in peer.offers}


def test_the_page_answers_every_question_about_every_peer() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    for question in program.QUESTIONS:
        assert question.title in page
    for peer in PEERS:
        assert peer.program is not None
        assert peer.title in page
        assert peer.program.version in page


def test_without_any_peer_the_comparison_is_skipped_with_each_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "why_not", lambda: "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program.main([]) == program.UNAVAILABLE
    said = capsys.readouterr().out
    assert "nvidia-device-plugin is not built yet, and Go is not installed" in said
    assert said.count("without ") == len(PEERS)
    assert "skipped: no plugin to compare with" in said


@pytest.mark.root
@pytest.mark.slow
def test_devhost_offers_every_device_of_the_machine() -> None:
    if reason := program.why_not():
        pytest.skip(reason)

    async def offers() -> dict[str, int]:
        async with serving(DEVHOST) as running:
            await ready(running)
            assert running.memory() > 0
            return running.node.kubelet.allocatable()

    assert asyncio.run(offers()) == DEVHOST.offers
