"""What the README shows of commands is what they print, as far as machines are alike."""

from __future__ import annotations

import re
from pathlib import Path

import generate_readme
import pytest
from program import devhost

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SESSIONS = {
    found[1]: found[2] for found in re.finditer(r"(?ms)^```console\n\$ devhost ([^\n]+)\n(.*?)^```$", README)
}


@pytest.fixture(autouse=True)
def _no_devhost_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(ROOT)


def session(command: str) -> tuple[str, str]:
    """What the README shows of a command, and what it prints here."""
    line = next(line for line in SESSIONS if line.split()[0] == command)
    done = devhost(*line.split())
    assert done.returncode == 0, done.stderr
    return SESSIONS[line], done.stdout


def test_the_check_it_shows_is_exact() -> None:
    shown, printed = session("check")
    assert shown == printed


def test_the_list_it_shows_has_the_form_of_this_machines() -> None:
    shown, printed = session("discover")
    headers, *rows, empty, _, rest = shown.splitlines()
    assert headers.split() == printed.splitlines()[0].split()
    if not re.search(r"(?m)^nvidia\.com/gpu ", printed):
        assert re.search(r"(?m)^nvidia\.com/gpu: 0 devices; .*$", printed)
    assert empty == "nvidia.com/gpu: 0 devices; the backend sees no devices (optional: not on this node)"
    assert all(re.fullmatch(r"devhost\.dev/\S+ +\S+ +Healthy +\S+ +\d+", row) for row in rows)
    if not printed.splitlines()[-1].endswith("tells why)"):
        pytest.skip("every device of this machine is in a resource")
    assert re.sub(r"\d+", "N", printed.splitlines()[-1]) == re.sub(r"\d+", "N", rest)


def test_the_explanation_it_shows_is_exact_as_far_as_it_goes() -> None:
    if not Path("/sys/devices/virtual/mem/null").exists():
        pytest.skip("this machine shows no /dev/null in sysfs")
    shown, printed = session("explain")
    beginning, _, _ = shown.partition("…")
    assert printed.startswith(beginning)


def test_its_two_commands_are_targets_of_make() -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?m)^make (\w+)", README):
        assert re.search(rf"(?m)^{target}:", targets), target


def test_the_figures_beside_other_plugins_are_those_of_their_page() -> None:
    comparison = generate_readme.COMPARISON.read_text(encoding="utf-8")
    assert generate_readme.renewed(README, comparison) == README, "run `make docs`"


def test_every_path_it_names_is_there() -> None:
    paths = re.findall(r"\b(?:deploy|config|plugins)/[\w./-]+\w", README)
    assert [path for path in paths if not (ROOT / path).exists()] == []
