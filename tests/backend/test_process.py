"""Programs in processes of their own: deadlines, what is killed, and what is reported."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from descriptors import open_descriptors
from kit.clock import AheadClock
from kit.command import completed
from kit.waiting import until, wait_until

from devhost.backend.backoff import Backoff
from devhost.backend.errors import BackendError, BackendTimeout
from devhost.backend.process import (
    Ended,
    LineProcess,
    NotStarted,
    OutputTooLarge,
    ProcessError,
    TimedOut,
    Worker,
    kill_group,
    python,
    run,
    run_async,
)

PATIENT = 60.0
"""Seconds for what takes milliseconds, on a busy machine."""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], list[str]]:
    """Makes the command that runs some lines of Python."""

    def made(text: str) -> list[str]:
        file = tmp_path / "program.py"
        file.write_text(text)
        return python(file, packages=False)

    return made


def exists(pid: int) -> bool:
    """Whether there is such a process, and it is not only waiting to be reaped by somebody."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- run once


def test_a_program_gets_its_input_and_its_output_is_given_back(program: Callable[[str], list[str]]) -> None:
    found = run(
        program("import sys; sys.stdout.write(sys.stdin.read().upper()); sys.stderr.write('warning')"),
        stdin=b"x" * 300_000,
        deadline=PATIENT,
    )
    assert (found.status, found.output, found.errors) == (0, b"X" * 300_000, b"warning")
    assert found.failure is None


def test_arguments_reach_the_program_and_packages_are_optional(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import sys; print(sys.argv[1:], sys.flags.no_site, sys.flags.safe_path)")
    lean = run(python(file, "a", "b c", packages=False), deadline=PATIENT).output
    assert lean == b"['a', 'b c'] 1 True\n"
    assert run(python(file), deadline=PATIENT).output == b"[] 0 True\n"


def test_compiled_code_of_a_program_is_kept_and_used(
    program: Callable[[str], list[str]], tmp_path: Path
) -> None:
    command = program("print(__name__, __file__)")
    expected = f"__main__ {tmp_path}/program.py\n".encode()
    assert run(command, deadline=PATIENT).output == expected
    (compiled,) = tmp_path.glob("__pycache__/program.*.pyc")
    made = compiled.stat().st_ino
    assert run(command, deadline=PATIENT).output == expected
    assert compiled.stat().st_ino == made
    (tmp_path / "program.py").write_text("print('edited')")
    assert run(command, deadline=PATIENT).output == b"edited\n"


@pytest.mark.parametrize("level", ["0", "2"])
def test_programs_use_the_code_that_the_image_has_compiled(level: str, tmp_path: Path) -> None:
    """With ``PYTHONOPTIMIZE``, also where an isolated program ignores the environment."""
    file = tmp_path / "program.py"
    file.write_text("import sys; print(sys.flags.optimize, sys.flags.isolated)")
    code = (
        "import sys; from devhost.backend.process import python, run; "
        "print([run(python(sys.argv[1], packages=one), deadline=60).output for one in (False, True)])"
    )
    environment = os.environ | {"PYTHONOPTIMIZE": level}
    found = completed(sys.executable, "-c", code, file, env=environment)
    assert found.stdout == f"[b'{level} 1\\n', b'{level} 0\\n']\n"


def test_an_inherited_descriptor_keeps_its_number(
    tmp_path: Path, program: Callable[[str], list[str]]
) -> None:
    (tmp_path / "file").write_text("held open")
    with (tmp_path / "file").open() as file:
        number = file.fileno()
        found = run(
            program(f"import os; os.write(1, os.read({number}, 99))"), deadline=PATIENT, descriptors=[number]
        )
    assert found.output == b"held open"


@pytest.mark.parametrize(
    ("text", "status", "failure"),
    [
        ("import sys; sys.exit(3)", 3, "exited with status 3"),
        ("import sys; sys.exit('first\\n no  driver\\n')", 1, "exited with status 1: no driver"),
        ("import os; os.abort()", -signal.SIGABRT, "was killed by SIGABRT"),
    ],
)
def test_a_failure_has_the_words_of_the_program_or_of_the_system(
    program: Callable[[str], list[str]], text: str, status: int, failure: str
) -> None:
    found = run(program(text), deadline=PATIENT)
    assert (found.status, found.failure) == (status, failure)


def test_a_program_that_does_not_exist_is_an_error_with_its_number() -> None:
    with pytest.raises(NotStarted, match="the tool cannot be started: /nowhere: No such file") as caught:
        run(["/nowhere"], deadline=1.0, name="the tool")
    assert caught.value.errno == 2
    assert isinstance(caught.value, BackendError)


def test_a_program_that_hangs_is_killed_with_what_it_started(
    tmp_path: Path, program: Callable[[str], list[str]]
) -> None:
    begun = tmp_path / "begun"
    command = program(
        "import os, time\nchild = os.fork()\n"
        f"if child: open({str(begun)!r}, 'w').close(); os.write(1, b'%d' % child)\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(TimedOut, match=r"^the program did not end within 60 s$") as caught:
        run(command, deadline=PATIENT, clock=lambda: PATIENT * begun.exists())
    assert caught.value.leftover is None
    assert isinstance(caught.value, BackendTimeout)
    wait_until(lambda: not exists(int(caught.value.output)))


def test_leftover_children_of_a_program_are_killed_and_delay_nothing(
    program: Callable[[str], list[str]],
) -> None:
    command = program(
        "import os, time\nchild = os.fork()\nif child: os.write(1, b'%d' % child)\nelse: time.sleep(600)\n"
    )
    found = run(command, deadline=PATIENT)
    assert found.status == 0
    wait_until(lambda: not exists(int(found.output)))


def test_a_deadline_is_measured_by_the_clock_it_is_given(program: Callable[[str], list[str]]) -> None:
    times = iter([0.0, 0.5, 10.0])
    with pytest.raises(TimedOut):
        run(program("import time; time.sleep(600)"), deadline=1.0, clock=lambda: next(times, 10.0))


def test_a_process_that_cannot_be_killed_is_reported_and_its_end_is_noticed(
    program: Callable[[str], list[str]],
) -> None:
    with pytest.raises(TimedOut, match="cannot be killed: a call into the kernel holds it") as caught:
        run(program("import time; time.sleep(600)"), deadline=0.1, grace=0.1, kill=lambda process: None)
    left = caught.value.leftover
    assert left is not None and not left.is_gone
    os.kill(left.pid, signal.SIGKILL)
    wait_until(lambda: left.is_gone)


def test_endless_output_is_refused(program: Callable[[str], list[str]]) -> None:
    endless = program("import os, time\nwhile True:\n    os.write(1, b'x' * 65536)\n    time.sleep(0.01)")
    began = time.monotonic()
    with pytest.raises(OutputTooLarge, match="wrote more than 100000 bytes"):
        run(endless, deadline=PATIENT, limit=100_000)
    assert time.monotonic() - began < PATIENT, "it was refused only at the deadline"


def test_the_end_of_a_long_error_output_is_kept(program: Callable[[str], list[str]]) -> None:
    talkative = program("import sys\nsys.stderr.write('x' * 200000 + '\\nthe reason\\n')\nsys.exit(1)")
    found = run(talkative, deadline=PATIENT)
    assert len(found.errors) <= 16 * 1024
    assert found.failure == "exited with status 1: the reason"


async def test_a_program_can_be_run_from_an_event_loop(program: Callable[[str], list[str]]) -> None:
    found = await run_async(program("import sys; print('a'); sys.exit('no driver')"), deadline=PATIENT)
    assert (found.output, found.failure) == (b"a\n", "exited with status 1: no driver")
    with pytest.raises(NotStarted, match="the tool cannot be started: /nowhere: No such file"):
        await run_async(["/nowhere"], deadline=PATIENT, name="the tool")
    with pytest.raises(TimedOut, match=r"did not end within 0\.1 s"):
        await run_async(program("import time; time.sleep(600)"), deadline=0.1)
    with pytest.raises(OutputTooLarge, match="wrote more than 10 bytes"):
        await run_async(program("print('x' * 100)"), deadline=PATIENT, limit=10)


async def test_a_cancelled_run_has_killed_its_program_with_what_it_started(
    tmp_path: Path, program: Callable[[str], list[str]]
) -> None:
    pids = tmp_path / "pids"
    command = program(
        "import os, time\n"
        "os.fork()\n"
        f"with open({str(pids)!r}, 'a') as file: file.write('%d\\n' % os.getpid())\n"
        "time.sleep(600)\n"
    )
    task = asyncio.ensure_future(run_async(command, deadline=PATIENT))
    await until(lambda: pids.exists() and len(pids.read_text().splitlines()) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    first, second = map(int, pids.read_text().split())
    wait_until(lambda: not exists(first) and not exists(second))


async def test_a_cancelled_run_does_not_wait_for_a_program_that_cannot_be_killed(
    program: Callable[[str], list[str]],
) -> None:
    survivors: list[subprocess.Popen[bytes]] = []
    command = program("import time; time.sleep(600)")
    task = asyncio.ensure_future(run_async(command, deadline=10 * PATIENT, grace=0.05, kill=survivors.append))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(PATIENT):
            await task
    assert survivors[0].poll() is None
    survivors[0].kill()
    survivors[0].wait(PATIENT)


def test_no_descriptor_stays_open(program: Callable[[str], list[str]]) -> None:
    command = program("")
    before = open_descriptors()
    run(command, deadline=PATIENT)
    with pytest.raises(NotStarted):
        run(["/nowhere"], deadline=1.0)
    asyncio.run(run_async(command, deadline=PATIENT))
    assert open_descriptors() <= before


# --- a worker

ECHO = """
import json, os, sys, time
print("{}", flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if "exit" in question:
        os._exit(question["exit"])
    if "raw" in question:
        print(question["raw"], flush=True)
        continue
    time.sleep(question.get("sleep", 0))
    print(json.dumps({"pid": os.getpid(), **question}), flush=True)
"""


@pytest.fixture
def start(program: Callable[[str], list[str]]) -> Iterator[Callable[..., Worker]]:
    """Makes a patient worker of a program, which is closed in the end."""
    made: list[Worker] = []

    def worker(text: str = ECHO, **options: Any) -> Worker:
        made.append(Worker(program(text), **{"deadline": PATIENT, "start_deadline": PATIENT} | options))
        return made[-1]

    yield worker
    for one in made:
        one.close()


def test_one_process_answers_all_requests(start: Callable[..., Worker]) -> None:
    worker = start()
    assert worker.pid is None
    answers = [worker.ask({"n": n, "text": "ü\n"}) for n in range(3)]
    assert [answer["n"] for answer in answers] == [0, 1, 2]
    assert {answer["pid"] for answer in answers} == {worker.pid}


def test_requests_of_several_threads_get_their_own_answers(start: Callable[..., Worker]) -> None:
    worker = start()
    found: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: worker.ask({"n": n})["n"]})) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: n for n in range(8)}


def test_a_worker_that_is_idle_ends_and_the_next_question_starts_another(
    start: Callable[..., Worker],
) -> None:
    worker = start(idle=0.05, idle_per_start=0, grace=PATIENT)
    first = worker.ask({})["pid"]
    wait_until(lambda: worker.pid is None)
    assert not exists(first)
    assert worker.ask({})["pid"] != first


def test_a_slow_start_lets_a_worker_stay_idle_for_longer(start: Callable[..., Worker]) -> None:
    clock = AheadClock()
    worker = start("import time; time.sleep(0.2)" + ECHO, idle=0.001, idle_per_start=1000, clock=clock)
    first = worker.ask({})["pid"]
    clock.ahead = 100.0
    assert worker.ask({})["pid"] == first


def test_a_question_without_an_answer_kills_the_process_and_none_is_started_for_a_while(
    start: Callable[..., Worker],
) -> None:
    clock = AheadClock()
    worker = start(name="the tool", backoff=Backoff(5.0, 60.0, jitter=0), grace=PATIENT, clock=clock)
    first = worker.ask({})["pid"]
    with pytest.raises(TimedOut, match=r"^the tool did not answer within 0.05 s$"):
        worker.ask({"sleep": 600}, deadline=0.05)
    wait_until(lambda: not exists(first))
    with pytest.raises(TimedOut, match=r"^the tool did not answer within 0.05 s$"):
        worker.ask({})
    clock.ahead = 5.0
    assert worker.ask({})["pid"] != first


def test_back_off_doubles_until_there_is_an_answer(tmp_path: Path, start: Callable[..., Worker]) -> None:
    now, starts = [0.0], tmp_path / "starts"
    worker = start(
        f"import sys; open({str(starts)!r}, 'a').write('x'); sys.exit(2)",
        backoff=Backoff(1.0, 60.0, jitter=0),
        grace=PATIENT,
        clock=lambda: now[0],
    )
    counts = []
    for second in range(16):
        now[0] = float(second)
        with pytest.raises(Ended, match=r"^the program exited with status 2$"):
            worker.ask({})
        counts.append(starts.stat().st_size)
    assert counts == [1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5]


@pytest.mark.parametrize(
    ("question", "error", "text"),
    [
        ({"exit": 3}, Ended, "the program exited with status 3"),
        ({"raw": "nonsense"}, ProcessError, "the program answered something that is no JSON object"),
        ({"raw": "[1]"}, ProcessError, "the program answered something that is no JSON object"),
    ],
)
def test_a_crash_or_an_invalid_answer_is_an_error(
    start: Callable[..., Worker],
    question: dict[str, object],
    error: type[Exception],
    text: str,
) -> None:
    worker = start(backoff=Backoff(0.0, 0.0))
    first = worker.ask({})["pid"]
    with pytest.raises(error, match=f"^{text}$"):
        worker.ask(question)
    assert worker.ask({})["pid"] != first


def test_a_process_that_is_slow_to_start_is_waited_for_and_not_started_twice(
    tmp_path: Path, start: Callable[..., Worker]
) -> None:
    gate = tmp_path / "gate"
    slow = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n{ECHO}"
    worker = start(slow, start_deadline=0.05)
    with pytest.raises(TimedOut, match="is not ready within"):
        worker.ask({})
    first = worker.pid
    gate.touch()

    def answered() -> bool:
        try:
            return bool(worker.ask({})["pid"] == first)
        except TimedOut:
            return False

    wait_until(answered)


def test_a_process_that_is_never_ready_ends_without_a_further_question(start: Callable[..., Worker]) -> None:
    worker = start("import time; time.sleep(600)", start_deadline=0.02, longest_start=0.1, grace=0.02)
    with pytest.raises(TimedOut):
        worker.ask({})
    wait_until(lambda: worker.pid is None)


def test_a_process_that_is_never_ready_is_killed(start: Callable[..., Worker]) -> None:
    clock = AheadClock()
    worker = start("import time; time.sleep(600)", start_deadline=0.02, clock=clock)
    with pytest.raises(TimedOut):
        worker.ask({})
    pid = worker.pid
    assert pid is not None
    clock.ahead = 200.0
    with pytest.raises(TimedOut):
        worker.ask({})
    wait_until(lambda: not exists(pid))


def test_no_second_process_is_started_beside_one_that_the_kernel_holds(start: Callable[..., Worker]) -> None:
    worker = start(backoff=Backoff(0.0, 0.0), grace=0.05, kill=lambda process: None)
    held = worker.ask({})["pid"]
    with pytest.raises(TimedOut, match="did not answer"):
        worker.ask({"sleep": 600}, deadline=0.05)
    with pytest.raises(TimedOut, match="cannot be killed: a call into the kernel holds it"):
        worker.ask({})
    os.kill(held, signal.SIGKILL)

    def answered() -> bool:
        try:
            return bool(worker.ask({})["pid"] != held)
        except TimedOut:
            return False

    wait_until(answered)
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_a_closed_worker_kills_its_process_and_can_be_asked_again(start: Callable[..., Worker]) -> None:
    worker = start(grace=PATIENT)
    first = worker.ask({})["pid"]
    worker.close()
    wait_until(lambda: not exists(first))
    assert worker.ask({})["pid"] != first


# --- lines


class Talker(LineProcess):
    """Keeps what its program reports."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self.lines: list[bytes] = []
        self.over = threading.Event()
        super().__init__(command, **options)

    def received(self, line: bytes) -> None:
        self.lines.append(line)

    def ended(self) -> None:
        self.over.set()


def test_lines_come_whole_and_the_last_ones_before_the_end_is_reported(
    program: Callable[[str], list[str]],
) -> None:
    text = "import os\nos.write(1, b'on')\nos.write(1, b'e\\ntwo\\nthr')\nos.write(1, b'ee\\nrest')\n"
    process = Talker(program(text))
    assert process.over.wait(PATIENT)
    assert process.lines == [b"one", b"two", b"three"]
    assert process.wait(PATIENT) and process.is_gone and process.is_over
    assert process.failure is None
    with pytest.raises(Ended, match="the program has ended"):
        process.send(b"hello")


def test_a_crash_is_reported_with_its_signal(program: Callable[[str], list[str]]) -> None:
    process = Talker(program("import os; os.kill(os.getpid(), 11)"), name="the tool")
    assert process.over.wait(PATIENT)
    assert process.failure == "the tool was killed by SIGSEGV"


def test_closing_the_input_ends_a_program_or_kills_it(
    program: Callable[[str], list[str]],
) -> None:
    asked = Talker(program("import sys; sys.stdin.read(); print('bye')"), grace=PATIENT)
    asked.end()
    assert asked.over.wait(PATIENT)
    assert (asked.lines, asked.failure) == ([b"bye"], None)
    killed = Talker(program("import time; time.sleep(600)"), grace=0.05)
    killed.end()
    assert killed.over.wait(PATIENT)
    assert killed.wait(PATIENT)


def test_a_line_without_end_kills_the_program(program: Callable[[str], list[str]]) -> None:
    endless = program("import os\nwhile True: os.write(1, b'x' * 4096)")
    process = Talker(endless, limit=10_000)
    assert process.over.wait(PATIENT)
    assert process.failure == "the program wrote a line of more than 10000 bytes"


def test_a_program_that_does_not_read_is_killed_when_its_pipe_is_full(
    program: Callable[[str], list[str]],
) -> None:
    process = Talker(program("import time; time.sleep(600)"))
    with pytest.raises(TimedOut, match=r"did not take a question within 0.05 s"):
        for _ in range(100):
            process.send(b"x" * 100_000, deadline=0.05)
    assert process.over.wait(PATIENT)


def test_what_a_line_process_started_ends_with_it(program: Callable[[str], list[str]]) -> None:
    text = "import os, time\nchild = os.fork()\nif child: print(child, flush=True)\ntime.sleep(600)\n"
    process = Talker(program(text))
    wait_until(lambda: bool(process.lines))
    process.kill("enough")
    assert process.wait(PATIENT)
    assert process.failure == "enough"
    wait_until(lambda: not exists(int(process.lines[0])))


def test_an_unkillable_process_is_left_and_its_end_is_noticed_later(
    program: Callable[[str], list[str]],
) -> None:
    process = Talker(program("import time; time.sleep(600)"), grace=0.02, kill=lambda process: None)
    process.kill()
    assert process.over.wait(PATIENT)
    assert not process.is_gone and not process.wait(0)
    waiting = threading.Thread(target=process.wait, args=(60 * PATIENT,), daemon=True)
    waiting.start()
    os.kill(process.pid, signal.SIGKILL)
    waiting.join(PATIENT)
    assert not waiting.is_alive()
    assert process.is_gone


def test_a_line_process_leaves_no_descriptor_open(program: Callable[[str], list[str]]) -> None:
    before = open_descriptors()
    process = Talker(program(""))
    assert process.over.wait(PATIENT) and process.wait(PATIENT)
    with pytest.raises(NotStarted):
        Talker(["/nowhere"])
    assert open_descriptors() <= before


def test_a_reaped_process_is_not_killed_since_its_id_may_be_anothers() -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""], start_new_session=True) as process:
        process.wait()
        kill_group(process)
    assert process.returncode == 0
