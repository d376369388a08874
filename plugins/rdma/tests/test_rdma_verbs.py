"""The deep probe says what verbs see, keeps nothing open, and survives whatever pyverbs or a device does."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from devhost_rdma.verbs import Verbs, Verdict, judge

from devhost.backend import HEALTHY, unhealthy
from devhost.backend.process import Leftover, kill_group

DEADLINE = 60.0
"""Seconds for a process to start and answer on a busy machine."""

SYSTEM_PACKAGES = "/usr/lib/python3/dist-packages"

ACTIVE: dict[str, int] = {"state": 4}
DOWN: dict[str, int] = {"state": 1}

PYVERBS = """
import json, os, time
MACHINE = json.loads({machine!r})
OPEN = {open_!r}

class PyverbsError(Exception):
    pass

class PyverbsRDMAError(PyverbsError):
    def __init__(self, text, code=-1):
        super().__init__(f"{{text}}. Errno: {{code}}, {{os.strerror(code)}}" if code != -1 else text)
        self.error_code = code

class Thing:
    def __init__(self, **fields):
        self.__dict__.update(fields)

def get_device_list():
    if MACHINE is None:
        raise PyverbsRDMAError("Failed to get devices list")
    return [Thing(name=name.encode()) for name in MACHINE]

class Context:
    def __init__(self, name):
        self.name, self.device = name, MACHINE[name]
        if "hangs" in self.device:
            time.sleep(3600)
        if "crashes" in self.device:
            os.abort()
        if "errno" in self.device:
            raise PyverbsRDMAError(f"Failed to open device {{name}}", self.device["errno"])
        open(f"{{OPEN}}/{{name}}", "w").close()

    def query_device(self):
        return Thing(phys_port_cnt=len(self.device["ports"]))

    def query_port(self, number):
        port = self.device["ports"][number - 1]
        if port is None:
            raise PyverbsRDMAError(f"Failed to query port {{number}}", 5)
        return Thing(**port)

    def close(self):
        os.unlink(f"{{OPEN}}/{{self.name}}")
"""


class Machine:
    """A pyverbs of our own for the probing process, and the devices it knows."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packages = path / "packages"
        self.open = path / "open"
        self.open.mkdir(parents=True)
        (self.packages / "pyverbs").mkdir(parents=True)
        monkeypatch.setenv("PYTHONPATH", str(self.packages))

    def has(self, devices: dict[str, Any] | None) -> None:
        """Lets pyverbs know these devices; ``None``: there is no RDMA core."""
        text = PYVERBS.format(machine=json.dumps(devices), open_=str(self.open))
        (self.packages / "pyverbs/device.py").write_text(text)


def probe(names: Sequence[str]) -> Mapping[str, Verdict]:
    return Verbs(deadline=DEADLINE).probe(names)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_whether_pyverbs_is_installed_is_told_without_importing_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(machine.packages)])
    assert Verbs().is_installed
    monkeypatch.setattr(sys, "path", [])
    assert not Verbs().is_installed
    assert "pyverbs" not in sys.modules


def test_a_device_that_opens_and_answers_is_healthy(machine: Machine) -> None:
    machine.has({"mlx5_0": {"ports": [ACTIVE, DOWN]}, "smi0": {"ports": []}})
    assert probe(["mlx5_0", "smi0"]) == dict.fromkeys(("mlx5_0", "smi0"), Verdict(HEALTHY))


def test_every_context_is_closed_again_also_when_a_port_fails(machine: Machine) -> None:
    machine.has({"a": {"ports": [ACTIVE]}, "b": {"ports": [ACTIVE, None]}})
    found = probe(["a", "b"])
    assert found["a"].health == HEALTHY
    assert found["b"].health == unhealthy(
        "does not answer: Failed to query port 2. Errno: 5, Input/output error"
    )
    assert list(machine.open.iterdir()) == []


def test_a_device_that_cannot_be_opened_says_why(machine: Machine) -> None:
    machine.has({"mlx5_0": {"errno": errno.ENOMEM}})
    assert probe(["mlx5_0"])["mlx5_0"].health == unhealthy(
        "cannot be opened: Failed to open device mlx5_0. Errno: 12, Cannot allocate memory"
    )


@pytest.mark.parametrize("code", [errno.ENODEV, errno.ENXIO, errno.EBUSY])
def test_a_device_that_is_going_away_is_not_judged(machine: Machine, code: int) -> None:
    machine.has({"mlx5_0": {"errno": code}})
    verdict = probe(["mlx5_0"])["mlx5_0"]
    assert verdict.health is None
    assert verdict.note.startswith("it is going away: Failed to open device mlx5_0")


def test_a_missing_right_of_devhosts_own_is_not_held_against_the_device(machine: Machine) -> None:
    machine.has({"mlx5_0": {"errno": errno.EPERM}})
    verdict = probe(["mlx5_0"])["mlx5_0"]
    assert verdict.health is None
    assert verdict.note.startswith("devhost may not open it")


def test_a_device_in_another_network_namespace_is_not_judged(machine: Machine) -> None:
    machine.has({"mlx5_1": {"ports": [ACTIVE]}})
    assert probe(["mlx5_0"]) == {"mlx5_0": Verdict(None, note="libibverbs does not know it")}


def test_without_an_rdma_core_no_device_is_judged(machine: Machine) -> None:
    machine.has(None)
    assert probe(["mlx5_0"])["mlx5_0"].health is None


def test_a_device_that_hangs_is_unhealthy_and_those_before_it_are_judged(machine: Machine) -> None:
    machine.has({"a": {"ports": [ACTIVE]}, "b": {"hangs": True}, "c": {"ports": [ACTIVE]}})
    # long enough for the first answer to be out on a slow machine
    verdicts = Verbs(deadline=3.0).probe(["a", "b", "c"])
    assert verdicts["a"].health == HEALTHY
    assert verdicts["b"].health is not None
    assert verdicts["b"].health.reason.startswith("verbs did not answer within")
    assert "c" not in verdicts


def test_the_last_of_a_long_row_that_ran_out_of_time_is_not_taken_for_hung() -> None:
    lines = '{"name": "a", "since": 100.0}\n{"name": "a", "ports": 1}\n{"name": "b", "since": 104.5}\n'
    assert judge(lines, 105.0) == {"a": Verdict(HEALTHY)}
    assert judge(lines, 107.0)["b"].health == unhealthy("verbs did not answer within 2 s")


def test_a_process_too_slow_to_start_judges_nothing() -> None:
    assert judge("", 105.0) == {}


def test_a_crash_in_a_providers_library_ends_only_the_probe(machine: Machine) -> None:
    machine.has({"a": {"ports": [ACTIVE]}, "b": {"crashes": True}})
    verdicts = probe(["a", "b"])
    assert verdicts["a"].health == HEALTHY
    assert verdicts["b"].health is None
    assert verdicts["b"].note == "pyverbs cannot be used: signal 6"


def test_a_pyverbs_that_cannot_be_imported_says_so_and_judges_nothing(machine: Machine) -> None:
    (machine.packages / "pyverbs/device.py").write_text("raise ImportError('libibverbs.so.1: cannot open')\n")
    note = "pyverbs cannot be used: libibverbs.so.1: cannot open"
    assert probe(["a", "b"]) == dict.fromkeys(("a", "b"), Verdict(None, note=note))


def test_a_broken_pyverbs_is_one_line_and_no_traceback(machine: Machine) -> None:
    (machine.packages / "pyverbs/device.py").write_text("1 / 0\n")
    assert probe(["a"])["a"].note == "pyverbs cannot be used: ZeroDivisionError: division by zero"


def test_no_devices_start_no_process() -> None:
    assert Verbs(python=["/nowhere/python"]).probe([]) == {}


def test_a_process_that_cannot_be_started_judges_nothing() -> None:
    assert Verbs(python=["/nowhere/python"]).probe(["a"]) == {
        "a": Verdict(None, note="the probe cannot be started: No such file or directory")
    }


class Held:
    """Keeps the signal from processes, as a call into the kernel would; kills them when asked to."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, process: subprocess.Popen[bytes]) -> None:
        if process not in self.processes:
            self.processes.append(process)

    def let_go(self) -> None:
        for process in self.processes:
            kill_group(process)
            process.wait(DEADLINE)


SO_FAR = """
import sys, time
print('{"name": "a", "ports": 1}', '{"name": "b", "since": 0.0}', '{"na', sep="\\n", end="", flush=True)
time.sleep(3600)
"""


def test_a_probe_that_cannot_be_killed_is_left_behind_and_no_other_is_started() -> None:
    held, leftovers = Held(), list[Leftover]()
    command = [sys.executable, "-I", "-S", "-c", SO_FAR]
    try:
        first = Verbs(python=command, deadline=2.0, grace=0.01, kill=held, leftovers=leftovers)
        verdicts = first.probe(["a", "b"])
        assert verdicts["a"].health == HEALTHY
        assert verdicts["b"].health is not None and not verdicts["b"].health
        # whichever backend asks: one whose options changed is another one
        second = Verbs(python=command, leftovers=leftovers)
        assert second.probe(["a"]) == {"a": Verdict(None, note="an earlier probe still hangs in the kernel")}
        assert len(held.processes) == 1
    finally:
        held.let_go()
    again = Verbs(python=["/nowhere/python"], leftovers=leftovers)
    assert again.probe(["a"])["a"].note.startswith("the probe cannot be started")


def test_lines_that_are_no_answers_are_left_out() -> None:
    good = json.dumps({"name": "a", "ports": []})
    assert list(judge(f'libibverbs: warning\n[1]\n"x"\n{{}}\n{good}\n{{"name": "b", "po')) == ["a"]
    assert judge("") == {}


def test_the_distributions_pyverbs_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Debian's python3-pyverbs: it imports in the probing process, and knows no device of this name."""
    monkeypatch.setenv("PYTHONPATH", SYSTEM_PACKAGES)
    check = [sys.executable, "-c", "import pyverbs.device"]
    if subprocess.run(check, capture_output=True, check=False).returncode:
        pytest.skip("no python3-pyverbs for this Python")
    assert probe(["devhost-none"]) == {"devhost-none": Verdict(None, note="libibverbs does not know it")}
