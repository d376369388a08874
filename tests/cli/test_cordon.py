"""``devhost cordon``, ``uncordon`` and ``drain``: files, lines and exit codes, with and without a devhost."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.kubelet import KubeletSimulator

from devhost.backend.errors import EnvironmentFailure
from devhost.cli import cordon
from devhost.cli.running_host import verdict_directory
from devhost.discovery.health import ALL
from devhost.discovery.verdicts import Verdict, own_file, settled, write

TOY = "example.com/toy"


class Desk:
    """Commands with a directory for the state, on a machine with the toys ``one`` and ``two``."""

    def __init__(self, toys: Any, state: Path) -> None:
        self.toys = toys
        self.state = state
        self.directory = state / "verdicts"

    def call(self, command: str, *arguments: str) -> tuple[int, list[str]]:
        """The exit code and the lines of output."""
        done = self.toys.devhost(command, *arguments, "--state-dir", str(self.state))
        return done.returncode, (done.stdout + done.stderr).splitlines()

    def cordoned(self) -> Sequence[Verdict]:
        return settled(self.directory, self.toys.root).verdicts

    def put(self, name: str, **values: Any) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        verdict = {"devices": ["toy/one"], "kind": "unhealthy", "reason": "XID 79", "by": "dcgm", **values}
        file = self.directory / name
        file.write_text(json.dumps(verdict))
        return file


@pytest.fixture
def desk(toys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("SUDO_USER", "alice")
    return Desk(toys, tmp_path / "state")


def test_a_cordon_is_a_file_with_the_stable_name_of_the_device(desk: Desk) -> None:
    (desk.toys.root / "dev/toys").mkdir(parents=True)
    (desk.toys.root / "dev/my-toy").symlink_to("toys/one")
    for name in ("one", "toy/one", "ONE", "s-one", "/dev/toys/one", "/dev/my-toy"):
        code, said = desk.call("cordon", name, "--reason", f"fan of {name}")
        assert (code, said) == (0, [f"toy/one: cordoned by alice: fan of {name}"])
    (only,) = desk.cordoned()
    assert (only.names, only.by, only.until) == (("toy/one",), "alice", None)


def test_a_cordon_may_end_by_itself_and_names_its_author(desk: Desk) -> None:
    code, said = desk.call("cordon", "one", "two", "--reason", "fan", "--for", "2h", "--by", "bob")
    assert code == 0
    assert [line.partition(", until ")[0] for line in said] == [
        "toy/one: cordoned by bob: fan",
        "toy/two: cordoned by bob: fan",
    ]
    assert [round(((one.until or 0) - one.since) / 60) for one in desk.cordoned()] == [120, 120]


def test_a_cordon_for_no_time_is_refused(desk: Desk) -> None:
    desk.call("cordon", "one", "--reason", "fan")
    code, said = desk.call("cordon", "one", "--reason", "other", "--for", "0s")
    assert (code, said) == (2, ["devhost: the cordon would have no effect (give --for a longer time)"])
    assert [one.text for one in desk.cordoned()] == ["cordoned by alice: fan"]


def test_a_drain_lets_an_earlier_cordon_not_end(desk: Desk) -> None:
    desk.call("cordon", "one", "--reason", "fan", "--by", "bob", "--for", "1h")
    desk.call("drain", "one", "--reason", "other")
    assert [(one.text, one.until) for one in desk.cordoned()] == [("cordoned by bob: fan", None)]


def test_an_unknown_name_or_one_of_several_devices_changes_nothing(desk: Desk) -> None:
    desk.toys.plug("one=x", "two=x")
    for command in (["cordon", "--reason", "fan"], ["drain"]):
        code, said = desk.call(*command, "one", "x")
        assert (code, said) == (
            2,
            ["devhost: x is a name of several devices: toy/one, toy/two (name one of them)"],
        )
        code, said = desk.call(*command, "one", "oen")
        assert (code, said) == (2, ["devhost: no backend has a device 'oen' (did you mean one?)"])
        code, said = desk.call(*command)
        assert (code, said[-1].partition(" (")[0]) == (2, "devhost: no device is named")
        code, said = desk.call(*command, "one", "--maintenance")
        assert (code, said[-1].partition(" (")[0]) == (2, "devhost: --maintenance is about all devices")
    assert not desk.directory.exists()
    code, said = desk.call("cordon", "one", "--reason", " ")
    assert (code, said) == (2, ["devhost: its reason is no text (write a reason)"])


def test_uncordon_removes_the_file_also_of_a_device_that_is_gone(desk: Desk) -> None:
    desk.call("cordon", "one", "two", "--reason", "fan")
    desk.toys.plug("two=x")
    assert desk.call("uncordon", "one", "s-two") == (
        0,
        ["toy/one: no longer cordoned", "toy/two: no longer cordoned"],
    )
    assert not desk.cordoned()
    assert desk.call("uncordon", "two") == (0, ["toy/two: was not cordoned"])
    code, said = desk.call("uncordon", "one")
    assert (code, said) == (
        2,
        ["devhost: no backend has a device 'one' (run `devhost discover --all` to list all devices)"],
    )


def test_uncordon_removes_also_a_cordon_that_has_ended(desk: Desk) -> None:
    write(desk.directory, "toy/one", "alice", "fan", 1e9)
    assert desk.call("uncordon", "one") == (0, ["toy/one: no longer cordoned"])
    assert [*desk.directory.iterdir()] == []


def test_uncordon_removes_a_damaged_cordon_and_reports_why(desk: Desk) -> None:
    desk.directory.mkdir(parents=True)
    for name, word in (("toy/one", "one"), ("toy/gone", "toy/gone"), (ALL, "--maintenance")):
        own_file(desk.directory, name).write_text("half")
        code, (said,) = desk.call("uncordon", word)
        called = "all devices of this node" if name == ALL else name
        assert (code, said[: said.index("JSON")]) == (
            0,
            f"{called}: a cordon without effect was removed: it is not ",
        )
    assert [*desk.directory.iterdir()] == []


def test_a_cordon_of_a_device_is_one_of_its_parts_and_ends_only_with_it(desk: Desk) -> None:
    desk.toys.plug("one=x", "two=of-one")
    assert desk.call("cordon", "one", "--reason", "fan")[0] == 0
    assert [one.names for one in desk.cordoned()] == [("toy/one",)]
    hint = "to end that: devhost uncordon toy/one"
    assert desk.call("uncordon", "two") == (
        1,
        [
            "toy/two: was not cordoned",
            f"devhost: toy/one is still out of service: cordoned by alice: fan ({hint})",
        ],
    )
    assert desk.call("uncordon", "one") == (0, ["toy/one: no longer cordoned"])


def test_without_a_devhost_the_files_count_for_discover_and_explain(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.call("cordon", "one", "--reason", "fan")
    desk.put("dcgm.json", devices=["two"])
    desk.put("ended.json", until="2001-01-01T00:00:00Z", reason="ended")
    monkeypatch.setenv("DEVHOST_STATE_DIR", str(desk.state))
    rows = desk.toys.devhost("discover").stdout.splitlines()[1:]
    assert [row.split()[2] for row in rows] == ["Unhealthy", "Unhealthy"]
    assert [row.split("  ")[-1].strip() for row in rows] == ["cordoned by alice: fan", "XID 79 (dcgm)"]
    first = desk.toys.devhost("explain", "one").stdout.splitlines()[0]
    assert first == "one of backend toy: Unhealthy: cordoned by alice: fan"
    desk.directory.chmod(0o777)  # then devhost refuses them
    first = desk.toys.devhost("explain", "one").stdout.splitlines()[0]
    assert first == "one of backend toy: Healthy"


def test_uncordon_leaves_the_files_of_other_programs(desk: Desk) -> None:
    file = desk.put("dcgm.json")
    code, said = desk.call("uncordon", "one")
    assert (code, said) == (
        1,
        [
            "toy/one: was not cordoned",
            "devhost: toy/one is still out of service: XID 79 (dcgm) "
            f"(devhost did not write {file}: who did should remove it)",
        ],
    )
    assert file.exists()


def test_maintenance_is_about_the_whole_node(desk: Desk) -> None:
    code, said = desk.call("cordon", "--maintenance", "--reason", "new power supply")
    assert (code, said) == (0, ["all devices of this node: cordoned by alice: new power supply"])
    assert [one.names for one in desk.cordoned()] == [(ALL,)]
    code, said = desk.call("uncordon", "one")
    hint = "to end that: devhost uncordon --maintenance"
    assert (code, said[-1]) == (
        1,
        f"devhost: all devices of this node are cordoned by alice: new power supply ({hint})",
    )
    assert desk.call("uncordon", "--maintenance") == (0, ["all devices of this node: no longer cordoned"])
    assert desk.call("uncordon", "--maintenance") == (0, ["all devices of this node: was not cordoned"])


@pytest.mark.parametrize(
    "command", [("cordon", "one", "--reason", "fan"), ("uncordon", "one"), ("drain", "one")]
)
def test_in_a_directory_that_devhost_refuses_nothing_is_done(desk: Desk, command: Sequence[str]) -> None:
    file = desk.put("cordon-of-another.json", kind="cordon")
    desk.directory.chmod(0o777)
    code, said = desk.call(*command)
    assert (code, [line.partition(", who")[0] for line in said]) == (
        3,
        [f"devhost: {desk.directory} is writable by its group and others"],
    )
    assert [*desk.directory.iterdir()] == [file]


@pytest.mark.root
def test_root_does_not_cordon_for_a_devhost_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(EnvironmentFailure, match=r"uid 65534 .* \(run the command as the user of devhost\)$"):
        verdict_directory(Path("/"), tmp_path)


@pytest.mark.root
def test_another_user_does_not_write_where_the_devhost_of_root_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEVHOST_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    own = tmp_path / "own" / "devhost"
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(EnvironmentFailure) as caught:
            verdict_directory(Path("/"), None, tmp_path)
        assert caught.value.hint.endswith(f"add --state-dir {own}")
        assert verdict_directory(Path("/"), own, tmp_path) == own / "verdicts"
        assert verdict_directory(Path("/"), None, tmp_path / "none") == own / "verdicts"
    finally:
        os.seteuid(0)


@pytest.mark.root
def test_without_the_right_to_write_there_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(0o755)
    hint = "(run the command as root, or as the user of devhost)"
    os.seteuid(65534)
    try:
        with pytest.raises(EnvironmentFailure) as caught:
            cordon.write(tmp_path / "verdicts", ["toy/one"], "alice", "fan", None)
    finally:
        os.seteuid(0)
    assert caught.value.exit_code == 3
    assert str(caught.value) == f"cannot write {tmp_path / 'verdicts'}: Permission denied {hint}"


def test_a_drain_without_a_devhost_leaves_the_cordon_and_exits_with_3(desk: Desk) -> None:
    code, said = desk.call("drain", "one")
    assert (code, said[-1][:45]) == (3, "devhost: no devhost is running on this node (")
    assert [one.text for one in desk.cordoned()] == ["cordoned by alice: drained"]


@asynccontextmanager
async def serving(desk: Desk, kubelet: KubeletSimulator) -> AsyncIterator[None]:
    desk.state.mkdir()  # as on a node: it is watched from the start, not looked for now and then
    options = ("--pod-resources", kubelet.pod_resources, "--state-dir", desk.state)
    with desk.toys.running(kubelet.directory, *options):
        yield


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[KubeletSimulator]:
    async with KubeletSimulator(tmp_path / "kubelet", pod_resources=tmp_path / "pods") as simulator:
        yield simulator


LINE = "kubectl delete pod -n default train"


async def given_up(desk: Desk, *arguments: str) -> list[str]:
    """What a drain of ``one`` says at its timeout, once devhost knows who has it and has read the cordon."""
    said: list[str] = []
    while LINE not in said:
        code, said = await asyncio.to_thread(desk.call, "drain", "one", "--timeout", "1s", *arguments)
        assert code == 1
    return said


async def test_a_drain_names_the_pods_and_waits_until_they_are_gone(
    desk: Desk, kubelet: KubeletSimulator
) -> None:
    (desk.toys.root / "dev").mkdir()
    (desk.toys.root / "dev/null").touch()
    async with serving(desk, kubelet):
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2}, 60)
        await kubelet.admit("train", "main", TOY, 2)
        said = await given_up(desk, "--reason", "fan")
        assert said[-1] == f"devhost: the time is over, and not everything is released: {LINE}"
        waiting = asyncio.create_task(asyncio.to_thread(desk.call, "drain", "one", "--reason", "other"))
        await asyncio.sleep(1)
        kubelet.release("train")
        code, said = await waiting
        assert (code, said[-1]) == (0, "toy/one: no container holds it")
        assert [one.text for one in desk.cordoned()] == ["cordoned by alice: fan"]
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1}, 60)
        assert (await asyncio.to_thread(desk.call, "uncordon", "one"))[0] == 0
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2}, 60)


async def test_a_drain_waits_for_the_holders_of_parts(desk: Desk, kubelet: KubeletSimulator) -> None:
    desk.toys.plug("one=x", "two=of-one")
    desk.toys.write("name: example.com/toy, backend: toy, where: {model: of-one}")
    (desk.toys.root / "dev").mkdir()
    (desk.toys.root / "dev/null").touch()
    async with serving(desk, kubelet):
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1}, 60)
        await kubelet.admit("train", "main", TOY, 1)
        await given_up(desk)
        kubelet.release("train")
        code, said = await asyncio.to_thread(desk.call, "drain", "one")
        assert (code, said[-1]) == (0, "toy/one: no container holds it")
