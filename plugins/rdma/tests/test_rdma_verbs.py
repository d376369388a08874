"""The verbs probe reports what verbs see, keeps nothing open, and survives failing devices and libraries."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from devhost_rdma.verbs import ProbeResult, Verbs, judge

from devhost.backend import HEALTHY, unhealthy
from devhost.backend.process import Leftover, TimedOut, kill_group

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
    """A fake pyverbs for the probing process, and its devices."""

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


def probe(names: Sequence[str]) -> Mapping[str, ProbeResult]:
    return Verbs(deadline=DEADLINE).probe(names)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_pyverbs_is_detected_without_importing_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(machine.packages)])
    assert Verbs().is_installed
    monkeypatch.setattr(sys, "path", [])
    assert not Verbs().is_installed
    assert "pyverbs" not in sys.modules


def test_a_device_that_opens_and_answers_is_healthy(machine: Machine) -> None:
    machine.has({"mlx5_0": {"ports": [ACTIVE, DOWN]}, "smi0": {"ports": []}})
    assert probe(["mlx5_0", "smi0"]) == dict.fromkeys(("mlx5_0", "smi0"), ProbeResult(HEALTHY))


def test_every_context_is_closed_even_if_a_port_fails(machine: Machine) -> None:
    machine.has({"a": {"ports": [ACTIVE]}, "b": {"ports": [ACTIVE, None]}})
    found = probe(["a", "b"])
    assert found["a"].health == HEALTHY
    assert found["b"].health == unhealthy(
        "does not answer: Failed to query port 2. Errno: 5, Input/output error"
    )
    assert list(machine.open.iterdir()) == []


def test_a_device_that_cannot_be_opened_is_unhealthy_with_the_reason(machine: Machine) -> None:
    machine.has({"mlx5_0": {"errno": errno.ENOMEM}})
    assert probe(["mlx5_0"])["mlx5_0"].health == unhealthy(
        "cannot be opened: Failed to open device mlx5_0. Errno: 12, Cannot allocate memory"
    )


@pytest.mark.parametrize("code", [errno.ENODEV, errno.ENXIO, errno.EBUSY])
def test_a_device_that_is_being_removed_gets_no_verdict(machine: Machine, code: int) -> None:
    machine.has({"mlx5_0": {"errno": code}})
    verdict = probe(["mlx5_0"])["mlx5_0"]
    assert verdict.health is None
    assert verdict.note.startswith("it is going away: Failed to open device mlx5_0")


def test_a_missing_permission_of_devhost_gives_no_verdict(machine: Machine) -> None:
    machine.has({"mlx5_0": {"errno": errno.EPERM}})
    verdict = probe(["mlx5_0"])["mlx5_0"]
    assert verdict.health is None
    assert verdict.note.startswith("permission denied")


def test_a_device_in_another_network_namespace_gets_no_verdict(machine: Machine) -> None:
    machine.has({"mlx5_1": {"ports": [ACTIVE]}})
    assert probe(["mlx5_0"]) == {"mlx5_0": ProbeResult(None, note="libibverbs does not know it")}


def test_without_an_rdma_core_no_device_gets_a_verdict(machine: Machine) -> None:
    machine.has(None)
    assert probe(["mlx5_0"])["mlx5_0"].health is None


def test_a_hanging_device_is_unhealthy_and_earlier_ones_get_a_verdict(machine: Machine) -> None:
    def until_b(command: Sequence[str], **_: object) -> NoReturn:
        """Runs the program until it opens b, as if the deadline had passed."""
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
            assert child.stdout is not None
            output = b""
            while b'"name": "b"' not in output:
                output += child.stdout.readline()
            kill_group(child)
        raise TimedOut("too late", output)

    machine.has({"a": {"ports": [ACTIVE]}, "b": {"hangs": True}, "c": {"ports": [ACTIVE]}})
    verbs = Verbs(run=until_b, clock=lambda: time.monotonic() + 5.0)
    verdicts = verbs.probe(["a", "b", "c"])
    assert verdicts["a"].health == HEALTHY
    assert verdicts["b"].health is not None
    assert verdicts["b"].health.reason.startswith("verbs did not answer within")
    assert "c" not in verdicts


def test_a_device_whose_turn_came_late_does_not_count_as_hung() -> None:
    lines = '{"name": "a", "since": 100.0}\n{"name": "a", "ports": 1}\n{"name": "b", "since": 104.5}\n'
    assert judge(lines, 105.0) == {"a": ProbeResult(HEALTHY)}
    assert judge(lines, 107.0)["b"].health == unhealthy("verbs did not answer within 2 s")


def test_a_process_that_starts_too_slowly_gives_no_verdict() -> None:
    assert judge("", 105.0) == {}


def test_a_crash_in_a_library_ends_only_the_probe(machine: Machine) -> None:
    machine.has({"a": {"ports": [ACTIVE]}, "b": {"crashes": True}})
    verdicts = probe(["a", "b"])
    assert verdicts["a"].health == HEALTHY
    assert verdicts["b"].health is None
    assert verdicts["b"].note == "pyverbs cannot be used: the probe was killed by SIGABRT"


def test_a_failing_import_of_pyverbs_is_reported_without_a_verdict(machine: Machine) -> None:
    (machine.packages / "pyverbs/device.py").write_text("raise ImportError('libibverbs.so.1: cannot open')\n")
    note = "pyverbs cannot be used: the probe exited with status 1: libibverbs.so.1: cannot open"
    assert probe(["a", "b"]) == dict.fromkeys(("a", "b"), ProbeResult(None, note=note))


def test_a_broken_pyverbs_is_reported_in_one_line(machine: Machine) -> None:
    (machine.packages / "pyverbs/device.py").write_text("1 / 0\n")
    reason = "exited with status 1: ZeroDivisionError: division by zero"
    assert probe(["a"])["a"].note == f"pyverbs cannot be used: the probe {reason}"


def test_no_devices_start_no_process() -> None:
    assert Verbs(python=["/nowhere/python"]).probe([]) == {}


def test_a_process_that_cannot_start_gives_no_verdict() -> None:
    assert Verbs(python=["/nowhere/python"]).probe(["a"]) == {
        "a": ProbeResult(None, note="the probe cannot be started: No such file or directory")
    }


OUTPUT = b'{"name": "a", "ports": 1}\n{"name": "b", "since": 0.0}\n{"na'


def test_while_a_probe_cannot_be_killed_no_other_starts() -> None:
    starts: list[Sequence[str]] = []
    leftovers = list[Leftover]()
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:

        def late(command: Sequence[str], **_: object) -> NoReturn:
            """A program that does not end although it was killed."""
            starts.append(command)
            raise TimedOut("too late", OUTPUT, Leftover(child))

        verdicts = Verbs(run=late, leftovers=leftovers).probe(["a", "b"])
        assert verdicts["a"].health == HEALTHY
        assert verdicts["b"].health is not None and not verdicts["b"].health
        # also by another backend object, after a change of its options
        second = Verbs(run=late, leftovers=leftovers)
        assert second.probe(["a"]) == {
            "a": ProbeResult(None, note="an earlier probe still hangs in the kernel")
        }
        assert len(starts) == 1
        child.kill()
    again = Verbs(python=["/nowhere/python"], leftovers=leftovers)
    assert again.probe(["a"])["a"].note.startswith("the probe cannot be started")


def test_invalid_lines_are_ignored() -> None:
    good = json.dumps({"name": "a", "ports": []})
    assert list(judge(f'libibverbs: warning\n[1]\n"x"\n{{}}\n{good}\n{{"name": "b", "po')) == ["a"]
    assert judge("") == {}


def test_the_distributions_pyverbs_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Debian's python3-pyverbs: it imports in the probing process, and knows no device of this name."""
    monkeypatch.setenv("PYTHONPATH", SYSTEM_PACKAGES)
    check = [sys.executable, "-c", "import pyverbs.device"]
    if subprocess.run(check, capture_output=True, check=False).returncode:
        pytest.skip("no python3-pyverbs for this Python")
    assert probe(["devhost-none"]) == {"devhost-none": ProbeResult(None, note="libibverbs does not know it")}
