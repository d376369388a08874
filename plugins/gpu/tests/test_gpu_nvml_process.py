"""The program that uses NVML, and the requests to it: against the stub library, with the real binding."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue

import pytest
from devhost_gpu.environment import Environment, Timings
from devhost_gpu.nvml.client import binding
from devhost_gpu.nvml.library import find_library
from devhost_gpu.nvml.process import Ended, ErrorReply, Message, NvmlProcess, Unanswered, program
from devhost_gpu.nvml.reports import Check, Gpu, NvmlError, checks, inventory, links
from gpu_nvidia import DGX, NvidiaMachine
from kit.command import completed
from kit.waiting import wait_until

A, B = DGX[:2]
PATIENCE = 60.0


class Desk:
    """A process on a machine, and its events."""

    def __init__(self, machine: NvidiaMachine, **seconds: float) -> None:
        self.heard: Queue[Message] = Queue()
        found = find_library(machine.root, "/")
        assert found is not None
        timings = Timings(**seconds)
        self.process = NvmlProcess(program(binding(), found, timings), self.heard.put, Environment(timings))

    def await_event(self, kind: str) -> Message:
        """The next event of a kind; earlier others are dropped."""
        end = time.monotonic() + PATIENCE
        while (left := end - time.monotonic()) > 0:
            try:
                message = self.heard.get(timeout=left)
            except Empty:
                break
            if message["event"] == kind:
                return message
        pytest.fail(f"no event {kind}")

    def gpus(self, *addresses: str) -> dict[str, Gpu | NvmlError]:
        return dict(inventory(self.process.ask("inventory", addresses, PATIENCE).content).gpus)


@pytest.fixture
def start() -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(machine: NvidiaMachine, **seconds: float) -> Desk:
        desks.append(Desk(machine, **seconds))
        return desks[-1]

    yield make
    for desk in desks:
        desk.process.end()
        desk.process.kill()
        assert desk.process.wait(PATIENCE)


def gpu(desk: Desk, address: str) -> Gpu:
    found = desk.gpus(address)[address]
    assert isinstance(found, Gpu)
    return found


def test_a_dgx_is_reported_with_all_its_parts(station: NvidiaMachine, start: Callable[..., Desk]) -> None:
    desk = start(station)
    found = inventory(desk.process.ask("inventory", DGX, PATIENCE).content)
    assert (found.driver, found.cuda) == ("570.124.06", "12.8")
    gpus = [found.gpus[address] for address in DGX]
    assert all(isinstance(one, Gpu) for one in gpus)
    split = [one for one in gpus if isinstance(one, Gpu) and one.mig]
    assert [len(one.instances) for one in split] == [7, 3]
    joined = links(desk.process.ask("links", DGX, PATIENCE).content)
    assert {joined.between(a, b) for a in DGX for b in DGX if a != b} == {12}


def test_a_lost_gpu_is_its_own_trouble_only(nvidia: NvidiaMachine, start: Callable[..., Desk]) -> None:
    nvidia.gpu(A)
    nvidia.gpu(B)
    nvidia.lose(A)
    desk = start(nvidia)
    found = desk.gpus(A, B)
    assert found[A] == NvmlError(15, "GPU is lost")
    assert isinstance(found[B], Gpu)
    answers = checks(desk.process.ask("probe", [A, B], PATIENCE).content)
    assert isinstance(answers[A], NvmlError)
    assert isinstance(answers[B], Check)


def test_a_gpu_that_shares_the_systems_memory_reports_none(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    uuid = nvidia.gpu(A)
    del nvidia.nvml.gpus[uuid]["memory"]
    nvidia.nvml.write()
    assert gpu(start(nvidia), A).memory is None


def test_functions_that_an_older_driver_lacks_leave_facts_out(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    nvidia.gpu(A)
    for call in ("nvmlDeviceGetArchitecture", "nvmlDeviceGetMigMode", "nvmlDeviceGetRemappedRows"):
        nvidia.nvml.fault(call, error=13)
    desk = start(nvidia)
    found = gpu(desk, A)
    assert (found.architecture, found.mig, found.name) == ("", False, "NVIDIA A100-SXM4-80GB")
    answer = checks(desk.process.ask("probe", [A], PATIENCE).content)[A]
    assert isinstance(answer, Check)
    assert not answer.remap_pending


def test_an_xid_is_reported_with_its_gpu_and_its_instance(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    uuid = nvidia.gpu(A)
    desk = start(nvidia)
    desk.gpus(A)
    nvidia.nvml.event(uuid, 79)
    assert desk.await_event("xid") == {"event": "xid", "gpu": A, "data": 79}
    nvidia.nvml.event(uuid, 94, gi=3, ci=0)
    assert desk.await_event("xid") == {"event": "xid", "gpu": A, "data": 94, "gi": 3, "ci": 0}


def test_changed_instances_are_reported_without_an_event_of_the_driver(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    nvidia.gpu(A)
    nvidia.mig(A, 1, 0)
    desk = start(nvidia, compare=0.1)
    desk.gpus(A)
    nvidia.mig(A, 2, 0)
    desk.await_event("mig")
    assert len(gpu(desk, A).instances) == 2
    nvidia.nvml.migs.clear()
    nvidia.nvml.write()
    desk.await_event("mig")


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId"])
def test_an_instance_that_is_destroyed_while_it_is_asked_is_no_error_of_its_gpu(
    nvidia: NvidiaMachine, start: Callable[..., Desk], call: str
) -> None:
    nvidia.gpu(A)
    kept, gone = nvidia.mig(A, 1, 0), nvidia.mig(A, 2, 0)
    desk = start(nvidia)
    assert len(gpu(desk, A).instances) == 2
    hang = nvidia.nvml.fault(call, gone, hang=60)
    with pytest.raises(Unanswered):
        desk.process.ask("inventory", [A], 0.05)
    del nvidia.nvml.migs[gone]
    nvidia.nvml.fix(hang)
    desk.await_event("late")
    assert [one.uuid for one in gpu(desk, A).instances] == [kept]


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId"])
def test_an_instance_that_fails_while_it_exists_is_an_error(
    nvidia: NvidiaMachine, start: Callable[..., Desk], call: str
) -> None:
    nvidia.gpu(A)
    failing = nvidia.mig(A, 1, 0)
    desk = start(nvidia)
    nvidia.nvml.fault(call, failing, error=15)
    assert isinstance(desk.gpus(A)[A], NvmlError)


def test_unbinding_is_reported(nvidia: NvidiaMachine, start: Callable[..., Desk]) -> None:
    nvidia.gpu(A)
    desk = start(nvidia)
    desk.gpus(A)
    wait_until(lambda: _hears_system_events(desk, nvidia))


def _hears_system_events(desk: Desk, machine: NvidiaMachine) -> bool:
    """The set of these events is made a moment after the first answer; what came before does not count."""
    machine.nvml.system_event(1)
    try:
        while True:
            if desk.heard.get(timeout=1.0)["event"] == "unbind":
                return True
    except Empty:
        return False


def test_a_question_that_waits_is_not_put_twice_and_its_late_answer_is_an_event(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    nvidia.gpu(A)
    desk = start(nvidia)
    desk.gpus(A)
    hang = nvidia.nvml.fault("nvmlDeviceGetName", hang=60)
    for _ in range(3):
        with pytest.raises(Unanswered, match="does not answer"):
            desk.process.ask("inventory", [A], 0.05)
    # nobody waits for anything else meanwhile
    with pytest.raises(Unanswered):
        desk.process.ask("probe", [A], 60.0)
    nvidia.nvml.fix(hang)
    desk.await_event("late")
    assert isinstance(desk.gpus(A)[A], Gpu)


def test_a_call_that_hangs_ends_the_process_and_is_attributed_to_its_gpu(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    nvidia.gpu(A)
    uuid = nvidia.gpu(B)
    desk = start(nvidia, hung=1.0, overtake=0.1, silence=0.5)
    desk.gpus(A, B)
    nvidia.nvml.fault("nvmlDeviceGetName", uuid, hang=60)
    assert desk.gpus(A, B).keys() == {A}

    def is_over() -> bool:
        desk.process.kill_if_hung()
        return desk.process.is_over

    wait_until(is_over)
    assert desk.process.wait(PATIENCE)
    assert desk.process.hung_gpu == B
    with pytest.raises(Ended, match="did not answer within"):
        desk.process.ask("inventory", [A, B], 0.05)


def test_a_driver_that_is_not_loaded_is_refused_and_may_come_later(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    nvidia.gpu(A)
    nvidia.nvml.loaded = False
    nvidia.nvml.write()
    desk = start(nvidia)
    with pytest.raises(ErrorReply, match="Driver Not Loaded") as refused:
        desk.gpus(A)
    assert refused.value.code == 9
    nvidia.load_driver()
    assert isinstance(desk.gpus(A)[A], Gpu)


def test_a_library_that_does_not_fit_the_driver_is_an_error_in_its_words(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    nvidia.gpu(A)
    nvidia.nvml.fault("nvmlInit_v2", error=18)
    with pytest.raises(ErrorReply, match="version mismatch"):
        start(nvidia).gpus(A)


def test_a_library_that_cannot_be_loaded_is_an_error(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    file = nvidia.root / "usr/lib64/libnvidia-ml.so.1"
    file.unlink()
    file.write_text("no library")
    with pytest.raises(Ended, match="libnvidia-ml"):
        start(nvidia).gpus(A)


def test_a_process_that_is_killed_from_outside_is_an_error(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    nvidia.gpu(A)
    desk = start(nvidia)
    desk.gpus(A)
    os.kill(desk.process.pid, signal.SIGKILL)
    desk.await_event("ended")
    with pytest.raises(Ended, match="SIGKILL"):
        desk.gpus(A)


def test_ending_releases_the_driver(nvidia: NvidiaMachine, start: Callable[..., Desk]) -> None:
    nvidia.gpu(A)
    desk = start(nvidia)
    desk.gpus(A)
    assert holds(desk.process.pid, nvidia)
    desk.process.end()
    desk.process.end()
    assert desk.process.wait(PATIENCE)
    assert not desk.process.failure


def test_ending_kills_a_process_that_hangs(nvidia: NvidiaMachine, start: Callable[..., Desk]) -> None:
    nvidia.gpu(A)
    desk = start(nvidia, grace=0.2)
    desk.gpus(A)
    os.kill(desk.process.pid, signal.SIGSTOP)  # as a call into the kernel holds it: it cannot end by itself
    desk.process.end()
    assert desk.process.wait(PATIENCE)


@pytest.mark.parametrize("hangs", [False, True])
def test_the_process_ends_with_its_parent(nvidia: NvidiaMachine, hangs: bool) -> None:
    """Also when that was killed, and also while a call hangs."""
    nvidia.gpu(A)
    if hangs:
        nvidia.nvml.fault("nvmlInit_v2", hang=60)
    found = find_library(nvidia.root, "/")
    assert found
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = program(binding(), found, Timings(exit_grace=0.2))
        child = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())
        theirs.close()
        ours.sendall(b'{"id": 1, "do": "inventory", "gpus": []}\n')
        if not hangs:
            assert ours.recv(4096)
        ours.close()
        assert child.wait(PATIENCE) == 0


def test_devhost_does_not_end_before_a_process_that_hangs(nvidia: NvidiaMachine) -> None:
    nvidia.gpu(A)
    nvidia.nvml.fault("nvmlInit_v2", hang=60)
    found = find_library(nvidia.root, "/")
    assert found
    code = (
        "from devhost_gpu.environment import Environment, Timings\n"
        "from devhost_gpu.nvml.process import NvmlProcess, Unanswered, program\n"
        f"command = program({binding()!r}, {found!r})\n"
        "process = NvmlProcess(command, lambda message: None, Environment(Timings(grace=0.3)))\n"
        f"try: process.ask('inventory', [{A!r}], 0.3)\n"
        "except Unanswered: process.end()\n"
        "print(process.pid)"
    )
    pid = completed(sys.executable, "-c", code, check=True).stdout
    assert not Path(f"/proc/{int(pid)}").exists()


def test_it_takes_little_memory(station: NvidiaMachine, start: Callable[..., Desk]) -> None:
    desk = start(station)
    desk.gpus(*DGX)
    status = Path(f"/proc/{desk.process.pid}/status").read_text()
    kilobytes = int(status.split("VmRSS:")[1].split()[0])
    assert kilobytes <= 20 * 1024, "devhost itself takes some 48 MB, and 64 MB are for both"


def holds(pid: int, machine: NvidiaMachine) -> bool:
    """Whether a process has the driver open."""
    marker = os.fspath(machine.nvml.open_marker)
    return any(os.path.realpath(entry) == marker for entry in Path(f"/proc/{pid}/fd").iterdir())


def test_the_binding_is_found_without_importing_it() -> None:
    code = (
        "import sys; from devhost_gpu.nvml.client import binding; "
        "assert binding(); assert 'pynvml' not in sys.modules"
    )
    completed(sys.executable, "-c", code, check=True)


@pytest.mark.parametrize("call", ["nvmlEventSetWait_v2", "nvmlSystemEventSetWait"])
def test_events_that_a_driver_does_not_have_are_waited_for_once(
    nvidia: NvidiaMachine, start: Callable[..., Desk], call: str
) -> None:
    """Else each refusal would make devhost look again, for ever."""
    uuid = nvidia.gpu(A)
    nvidia.nvml.fault(call, error=13)
    desk = start(nvidia, compare=0.1)
    desk.gpus(A)
    nvidia.mig(A, 1, 0)
    heard = set()
    while "mig" not in heard:  # which is some seconds after the start
        heard.add(desk.heard.get(timeout=PATIENCE)["event"])
    assert "trouble" not in heard
    if call == "nvmlSystemEventSetWait":
        nvidia.nvml.event(uuid, 79)
        assert desk.await_event("xid")["gpu"] == A


def test_errors_of_events_are_reported_less_and_less_often(
    nvidia: NvidiaMachine, start: Callable[..., Desk]
) -> None:
    uuid = nvidia.gpu(A)
    fault = nvidia.nvml.fault("nvmlEventSetWait_v2", error=999)
    desk = start(nvidia, event_wait=0.1)
    desk.gpus(A)
    assert desk.await_event("trouble")["error"]["code"] == 999
    assert desk.await_event("trouble")
    nvidia.nvml.fix(fault)
    nvidia.nvml.event(uuid, 79)
    assert desk.await_event("xid")["gpu"] == A
