"""The process that asks netlink: when it starts, when it ends, and what a question without an answer does."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from devhost_sriov import netlink_child
from devhost_sriov.netlink import NAME, Devlink, Kernel, Switch
from kit.files import replace
from kit.waiting import wait_until

from devhost.backend.backoff import Backoff
from devhost.backend.process import Worker, python
from devhost.backend.traffic import DefaultRoute, Traffic

WAIT = 60.0
"""Seconds in which a condition must come true, also on a busy machine."""

NEVER = Backoff(WAIT * 10, WAIT * 10)
"""No other process is started after one has failed."""

ANSWERS = """
import json, os, sys, time
HERE = os.path.dirname(os.path.abspath(__file__))
def answer(question):
    with open(f"{HERE}/asked", "a") as file:
        print(os.getpid(), question["do"], file=file)
    given = json.load(open(f"{HERE}/answers"))[question["do"]]
    if given == "hang":
        time.sleep(600)
    if given == "die":
        os._exit(3)
    return given
while os.path.exists(f"{HERE}/starting"):
    time.sleep(0.01)
print("{}", flush=True)
for line in iter(sys.stdin.readline, ""):
    print(json.dumps(answer(json.loads(line))), flush=True)
"""
"""Answers as configured in a file, and ends with its input."""


class Program:
    """A program in place of the one that asks netlink."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "program.py"
        self.path.write_text(ANSWERS)
        self.answers("traffic", {"ok": {"routes": [], "addresses": []}})

    def answers(self, question: str, answer: object) -> None:
        """From now on, to this question."""
        file = self.directory / "answers"
        known = json.loads(file.read_text()) if file.exists() else {}
        replace(file, json.dumps(known | {question: answer}))

    @property
    def asked(self) -> list[list[str]]:
        """The process and the question, of each that was asked."""
        file = self.directory / "asked"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def processes(self) -> int:
        """How many have been asked."""
        return len({process for process, _ in self.asked})


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def make() -> Iterator[Callable[..., Kernel]]:
    """Makes kernels, and ends their processes."""
    made: list[Kernel] = []

    def kernel(program: Path, **parameters: Any) -> Kernel:
        options = {"deadline": WAIT, "backoff": Backoff(0.0, 0.0), "grace": 1.0} | parameters
        made.append(Kernel(Worker(python(program), name=NAME, **options)))
        return made[-1]

    yield kernel
    for one in made:
        one.close()


# --- what is asked


def test_the_first_request_starts_one_process_for_all(make: Callable[..., Kernel], program: Program) -> None:
    program.answers("vf_macs", {"ok": []})
    kernel = make(program.path)
    assert kernel.pid is None
    for _ in range(5):
        kernel.traffic({})
        kernel.vf_macs()
    assert len(program.asked) == 10
    assert program.processes == 1


def test_answers_give_facts_by_interface_name(make: Callable[..., Kernel], program: Program) -> None:
    routes = [[4, 2, 254], [6, 3, 4711], [4, 99, 254]]
    addresses = [["192.0.2.7", 2], ["192.0.2.8", 99]]
    switch = {"mode": 1, "profile": "ICE", "virtual": [[0, "rep0"]], "scalable": [[88, "sf88"]]}
    program.answers("traffic", {"ok": {"routes": routes, "addresses": addresses}})
    program.answers("vf_macs", {"ok": [["eth0", 0, "02:00:00:00:00:01"], ["eth0", 3, "02:00:00:00:00:04"]]})
    program.answers("devlink", {"ok": {"group": 9, "switches": {"0000:3b:00.0": switch}}})
    kernel = make(program.path)
    assert kernel.traffic({2: "eth0", 3: "eth1"}) == Traffic(
        frozenset({DefaultRoute(4, "eth0"), DefaultRoute(6, "eth1", 4711)}),
        frozenset({("192.0.2.7", "eth0")}),
    )
    assert kernel.vf_macs() == {"eth0": {0: "02:00:00:00:00:01", 3: "02:00:00:00:00:04"}}
    made = Switch("switchdev", "ICE", {0: "rep0"}, {88: "sf88"})
    assert kernel.devlink(profiles=True) == Devlink({"0000:3b:00.0": made}, 9)


def test_an_unknown_switch_mode_is_empty(make: Callable[..., Kernel], program: Program) -> None:
    switch = {"mode": None, "profile": "", "virtual": [], "scalable": []}
    program.answers("devlink", {"ok": {"group": None, "switches": {"a": switch, "b": switch | {"mode": 7}}}})
    found = make(program.path).devlink(profiles=False)
    assert found == Devlink({"a": Switch(), "b": Switch()})


# --- questions that fail


def test_a_refusal_of_the_kernel_is_an_oserror_with_its_errno(
    make: Callable[..., Kernel], program: Program
) -> None:
    program.answers("traffic", {"error": "(1, 'Operation not permitted')", "errno": 1})
    with pytest.raises(PermissionError) as caught:
        make(program.path).traffic({})
    assert caught.value.strerror == "Operation not permitted"


def test_an_error_without_errno_keeps_its_message(make: Callable[..., Kernel], program: Program) -> None:
    words = "a default route names its next hop by number alone"
    program.answers("traffic", {"error": words, "errno": None})
    with pytest.raises(OSError, match=f"^{words}$"):
        make(program.path).traffic({})


def test_a_process_that_does_not_answer_is_killed_and_the_request_fails(
    make: Callable[..., Kernel], program: Program
) -> None:
    program.answers("traffic", "hang")
    kernel = make(program.path, deadline=0.1, start_deadline=WAIT)
    with pytest.raises(TimeoutError, match=r"^the kernel does not answer$"):
        kernel.traffic({})
    wait_until(lambda: kernel.pid is None)


def test_a_process_that_is_slow_to_start_is_waited_for_and_answers_later(
    make: Callable[..., Kernel], program: Program
) -> None:
    (program.directory / "starting").touch()
    kernel = make(program.path, start_deadline=0.1)
    for _ in range(3):
        with pytest.raises(TimeoutError, match=r"^the kernel does not answer$"):
            kernel.traffic({})
    assert kernel.pid is not None
    (program.directory / "starting").unlink()

    def answered() -> bool:
        with suppress(TimeoutError):
            return kernel.traffic({}) == Traffic()
        return False

    wait_until(answered)
    assert program.processes == 1


def test_a_process_that_never_starts_is_killed(make: Callable[..., Kernel], program: Program) -> None:
    (program.directory / "starting").touch()
    kernel = make(program.path, start_deadline=0.1, longest_start=0.2, backoff=NEVER)

    def ended() -> bool:
        with suppress(TimeoutError):
            kernel.traffic({})
        return kernel.pid is None

    wait_until(ended)


def test_after_a_hang_one_scan_starts_no_further_process(
    make: Callable[..., Kernel], program: Program
) -> None:
    program.answers("traffic", "hang")
    program.answers("vf_macs", {"ok": []})
    kernel = make(program.path, deadline=3.0, start_deadline=WAIT, backoff=NEVER)
    kernel.vf_macs()
    with pytest.raises(TimeoutError):
        kernel.traffic({})
    with pytest.raises(TimeoutError):
        kernel.vf_macs()
    assert program.processes == 1


def test_after_the_pause_another_process_answers(make: Callable[..., Kernel], program: Program) -> None:
    program.answers("traffic", "hang")
    program.answers("vf_macs", {"ok": []})
    kernel = make(program.path, deadline=3.0, start_deadline=WAIT)
    with pytest.raises(TimeoutError):
        kernel.traffic({})
    assert kernel.vf_macs() == {}
    assert program.processes == 2


@pytest.mark.parametrize("is_first", [True, False])
def test_a_process_that_dies_fails_one_request_and_is_replaced(
    make: Callable[..., Kernel], program: Program, is_first: bool
) -> None:
    program.answers("vf_macs", "die")
    kernel = make(program.path)
    if not is_first:
        kernel.traffic({})
    with pytest.raises(OSError, match=r"^the netlink process exited with status 3$"):
        kernel.vf_macs()
    assert kernel.traffic({}) == Traffic()


def test_a_process_that_is_killed_from_outside_is_reported_once(
    make: Callable[..., Kernel], program: Program
) -> None:
    kernel = make(program.path)
    kernel.traffic({})
    assert kernel.pid is not None
    os.kill(kernel.pid, signal.SIGKILL)
    with pytest.raises(OSError, match="was killed by SIGKILL"):
        kernel.traffic({})
    assert kernel.traffic({}) == Traffic()


def test_closing_ends_the_process(make: Callable[..., Kernel], program: Program) -> None:
    kernel = make(program.path)
    kernel.traffic({})
    kernel.close()
    kernel.close()
    wait_until(lambda: kernel.pid is None)


# --- the program itself


def test_an_idle_process_ends_and_the_next_request_starts_another(
    make: Callable[..., Kernel], program: Program
) -> None:
    kernel = make(program.path, idle=0.2, idle_per_start=0.0)
    before = kernel.traffic({})
    wait_until(lambda: kernel.pid is None)
    assert kernel.traffic({}) == before


def test_a_request_at_the_end_of_an_idle_process_is_answered_by_another(
    make: Callable[..., Kernel], program: Program
) -> None:
    kernel = make(program.path, idle=0.0, idle_per_start=0.0)
    for _ in range(5):
        kernel.traffic({})


@pytest.mark.parametrize("questions", [b"", b'{"do": "vf_macs"}\n'])
def test_the_process_ends_with_its_parent(questions: bytes) -> None:
    """The kernel closes the input when devhost ends, killed or not."""
    ran = subprocess.run(
        [sys.executable, "-P", netlink_child.__file__],
        input=questions,
        capture_output=True,
        timeout=WAIT,
        check=True,
    )
    ready, *answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ready == {}
    assert [set(answer) for answer in answers] == [{"ok"}] * len(questions.splitlines())


def is_read(pipe: int) -> bool:
    """Whether the reader of a pipe has taken everything."""
    count = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0] == 0


def test_a_request_in_two_pieces_is_one_request() -> None:
    with subprocess.Popen(
        [sys.executable, "-P", netlink_child.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin and child.stdout
        for piece in (b'{"do": "vf', b'_macs"}\n'):
            child.stdin.write(piece)
            child.stdin.flush()
            wait_until(partial(is_read, child.stdin.fileno()))
        assert json.loads(child.stdout.readline()) == {}
        assert set(json.loads(child.stdout.readline())) == {"ok"}
        child.stdin.close()
        assert child.wait(WAIT) == 0


class Lists:
    """What a kernel answers to the same question, time after time: the flags of the messages of each list."""

    def __init__(self, *lists: list[int]) -> None:
        self.lists = lists
        self.asked = 0

    async def dump(self) -> AsyncIterator[dict[str, dict[str, int]]]:
        self.asked += 1
        return self._messages(self.lists[min(self.asked, len(self.lists)) - 1])

    async def _messages(self, flags: list[int]) -> AsyncIterator[dict[str, dict[str, int]]]:
        for one in flags:
            yield {"header": {"flags": one}}


async def test_a_list_that_changed_while_it_was_sent_is_requested_again() -> None:
    multi = 0x2
    lists = Lists([multi, multi | netlink_child.INTERRUPTED], [multi, multi, multi])
    assert len(await netlink_child.complete_list(lists.dump)) == 3
    assert lists.asked == 2


async def test_a_list_that_keeps_changing_is_an_error() -> None:
    lists = Lists([netlink_child.INTERRUPTED])
    with pytest.raises(netlink_child.Unresolved, match="keeps changing"):
        await netlink_child.complete_list(lists.dump)
    assert lists.asked == netlink_child.TRIES


def test_an_exception_of_a_library_becomes_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    answer = netlink_child.answer_to({"do": "traffic"})
    assert "pyroute2" in answer["error"]
    assert answer["errno"] is None


def test_devhost_itself_does_not_import_pyroute2() -> None:
    script = (
        "import sys; from devhost.backend.process import Worker, python; "
        "from devhost_sriov.netlink import PROGRAM, Kernel; "
        "kernel = Kernel(Worker(python(PROGRAM), deadline=60)); "
        "kernel.traffic({}); kernel.close(); sys.exit('pyroute2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=2 * WAIT, check=False).returncode == 0
