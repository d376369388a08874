"""A backend in service: whatever it raises leaves as one line with its name, and it hangs alone."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit.backend import Plain
from kit.waiting import until

from devhost.backend import (
    AllocateRequest,
    AllocationError,
    Attribute,
    Backend,
    Device,
    Edits,
    Event,
    Health,
    MissingDriver,
    NoOptions,
    OptionError,
)
from devhost.backend.errors import (
    MAX_REASON,
    BackendError,
    BackendTimeout,
    ConfigError,
    DevhostError,
    UsageError,
)
from devhost.backend.model import unhealthy
from devhost.discovery.runner import BackendRunner, ServiceContext, own_request

DEVICES = (Device("d0"),)


class Card(Plain):
    """A backend whose methods a test sets on the class it makes from this one."""

    name = "card"

    def discover(self) -> Any:
        return [Device("d0")]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Callable[..., BackendRunner]]:
    """Makes a source of a backend that has these methods."""
    made: list[BackendRunner] = []

    def make(**methods: Any) -> BackendRunner:
        kind = type("Scripted", (Card,), methods)
        made.append(BackendRunner(kind, NoOptions(), tmp_path, {"model"}))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("cannot say")


class Bare(BackendError):
    """A stranger's subclass that forgot to call its base."""

    def __init__(self) -> None:
        return


class Panic(BaseException):
    """What a Rust library raises."""


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: object) -> Any:
        raise error

    return fail


FAILURES = [
    (ValueError("firmware\n  says\tno"), "backend card failed: ValueError: firmware says no"),
    (OSError(5, "Input/output error"), "backend card failed: Input/output error"),
    (KeyError("x"), "backend card failed: KeyError: 'x'"),
    (TimeoutError(), "backend card failed: TimeoutError"),
    (NotImplementedError(), "backend card failed: NotImplementedError"),
    (RecursionError("deep"), "backend card failed: RecursionError: deep"),
    (MemoryError(), "backend card failed: MemoryError"),
    (Mute(), "backend card failed: Mute"),
    (StopIteration(), "backend card failed: RuntimeError: it raised StopIteration()"),
    (KeyboardInterrupt(), "backend card failed: RuntimeError: it raised KeyboardInterrupt()"),
    (SystemExit(3), "backend card failed: RuntimeError: it raised SystemExit(3)"),
    (asyncio.CancelledError(), "backend card failed: RuntimeError: it raised CancelledError()"),
    (Panic("at lib.rs"), "backend card failed: RuntimeError: it raised Panic('at lib.rs')"),
    (ExceptionGroup("two", [ValueError("a")]), "backend card failed: ExceptionGroup: two (1 sub-exception)"),
    (BackendError("the driver\nis busy", "wait"), "the driver is busy (wait)"),
    (AllocationError("no\nroom"), "no room"),
    (Bare(), "Bare"),
    (UsageError("odd"), "backend card failed: UsageError: odd"),
    (ConfigError(()), "backend card failed: ConfigError"),
    (OptionError("odd"), "backend card failed: OptionError: odd"),
    (DevhostError("x" * 2000), f"backend card failed: DevhostError: {'x' * 499}…"),
]


@pytest.mark.parametrize(("error", "text"), FAILURES)
@pytest.mark.parametrize("where", ["init", "discover", "notice", "probe", "prepare", "allocate"])
async def test_any_exception_of_a_backend_becomes_a_backend_error_of_one_line(
    source: Any, where: str, error: BaseException, text: str
) -> None:
    broken = source(**{"__init__" if where == "init" else where: raising(error)})
    with pytest.raises(BackendError) as caught:
        await broken.call("discover", None, broken.discover, [Event()])
        await broken.call("probe", None, broken.probe, [Device("d0")])
        await broken.call("serve", 60.0, broken.prepare, AllocateRequest(DEVICES))
        await broken.call("serve", 60.0, broken.allocate, AllocateRequest(DEVICES))
    assert str(caught.value) == text
    assert isinstance(caught.value, AllocationError) == isinstance(error, AllocationError)


async def test_a_generator_that_fails_half_way_does_not_shorten_the_list(source: Any) -> None:
    def discover(self: Backend) -> Iterator[Device]:
        yield Device("d0")
        raise OSError("unplugged while we looked")

    with pytest.raises(BackendError, match="unplugged while we looked"):
        broken = source(discover=discover)
        await broken.call("discover", None, broken.discover, [])


@pytest.mark.parametrize("answer", [None, 7, Device("d0")])
async def test_a_result_that_is_not_a_list_is_a_failure(source: Any, answer: object) -> None:
    with pytest.raises(BackendError, match="backend card failed: TypeError"):
        broken = source(discover=lambda self: answer)
        await broken.call("discover", None, broken.discover, [])


@pytest.mark.parametrize("answer", [None, [], "fine", {"d0": False}, {"d0": None}, {"d0": Health("bad")}])
async def test_a_probe_with_an_invalid_result_is_a_failure(source: Any, answer: object) -> None:
    broken = source(probe=lambda self, devices: answer)
    broken.discover([])
    with pytest.raises(
        BackendError, match=r"^probe\(\) of backend card did not return a mapping of ids to Health"
    ):
        await broken.call("probe", None, broken.probe, [])


@pytest.mark.parametrize(
    ("answer", "flaw"),
    [
        ("x", "something that is not a MissingDriver"),
        (MissingDriver(1, "no driver"), "whose subject or reason is not a string"),  # type: ignore[arg-type]
        (MissingDriver("card", None), "whose subject or reason is not a string"),  # type: ignore[arg-type]
        (MissingDriver("card", "no driver", None), "whose attributes are not a mapping"),  # type: ignore[arg-type]
        (MissingDriver("card", "no driver", {"model": 3}), "whose attribute 'model' is int, declared as str"),
        (MissingDriver("card", "no driver", {"modle": "a"}), "whose attribute 'modle' is not declared"),
    ],
)
async def test_a_missing_driver_that_cannot_be_shown_is_a_failure(
    source: Any, answer: object, flaw: str
) -> None:
    declared = {"model": Attribute(str, "model of the card", "X100")}
    broken = source(missing_drivers=lambda self: [answer], attributes=declared)
    with pytest.raises(BackendError, match=rf"^missing_drivers\(\) of backend card returned .*{flaw}"):
        await broken.call("discover", None, broken.discover, [])


async def test_a_list_that_never_ends_is_a_failure(source: Any) -> None:
    endless = source(discover=lambda self: itertools.repeat(Device("d0")))
    with pytest.raises(BackendError, match=r"discover\(\) of backend card listed more than 100000 devices"):
        await endless.call("discover", None, endless.discover, [])


async def test_missing_drivers_that_never_end_are_a_failure(source: Any) -> None:
    endless = source(missing_drivers=lambda self: itertools.repeat(MissingDriver("card", "no driver")))
    with pytest.raises(BackendError, match=r"missing_drivers\(\) of backend card listed more than 100000 "):
        await endless.call("discover", None, endless.discover, [])


async def test_the_subject_of_a_missing_driver_is_short_and_printable(source: Any) -> None:
    made = source(missing_drivers=lambda self: [MissingDriver("card\n" * MAX_REASON, "no driver")])
    made.discover([])
    (missing,) = made.missing_drivers
    assert len(missing.subject) == MAX_REASON
    assert missing.subject.isprintable()


async def test_a_failed_start_is_retried_with_the_next_scan(source: Any) -> None:
    starts: list[int] = []

    def init(self: Backend, options: object, context: object) -> None:
        starts.append(1)
        if len(starts) < 3:
            raise OSError("library not there yet")

    late = source(__init__=init)
    for _ in range(2):
        with pytest.raises(BackendError, match="library not there yet"):
            await late.call("discover", None, late.discover, [])
        with pytest.raises(BackendError, match="backend card has not started"):
            _ = late.backend
    assert await late.call("discover", None, late.discover, []) == [Device("d0")]
    late.discover([])
    assert len(starts) == 3


async def test_a_hanging_scan_does_not_delay_a_pod(source: Any, hang: threading.Event) -> None:
    slow = source()
    slow.discover([])
    type(slow.backend).discover_deadline = 1.0
    type(slow.backend).discover = lambda self: hang.wait()
    with pytest.raises(
        BackendTimeout, match=r"^backend card did not answer within 1 s when looking for devices$"
    ):
        await slow.call("discover", None, slow.discover, [])
    assert await slow.call("serve", 60.0, slow.backend.allocate, []) == Edits()
    assert slow.hung == 1


async def test_a_hanging_probe_delays_neither_a_scan_nor_a_pod(source: Any, hang: threading.Event) -> None:
    slow = source(probe=lambda self, devices: hang.wait())
    slow.discover([])
    type(slow.backend).discover_deadline = 1.0
    with pytest.raises(
        BackendTimeout, match=r"^backend card did not answer within 1 s when probing devices$"
    ):
        await slow.call("probe", None, slow.probe, [Device("d0")])
    assert (slow.hung, slow.hung_threads) == (1, {"card-probe"})
    type(slow.backend).discover_deadline = 60.0
    assert await slow.call("discover", None, slow.discover, []) == [Device("d0")]
    assert await slow.call("serve", 60.0, slow.backend.allocate, []) == Edits()


async def test_scans_probes_and_pods_have_separate_threads_once_they_are_needed(source: Any) -> None:
    def threads() -> list[str]:
        return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("card-"))

    one = source(probe=lambda self, devices: {})
    await until(lambda: not threads())
    await one.call("discover", None, one.discover, [])
    assert threads() == ["card-discover"]
    await one.call("probe", None, one.probe, [Device("d0")])
    assert threads() == ["card-discover", "card-probe"]
    await one.call("serve", 60.0, one.backend.allocate, [])
    assert threads() == ["card-discover", "card-probe", "card-serve"]
    one.close()
    await until(lambda: not threads())
    plain = source()
    await plain.call("discover", None, plain.discover, [])
    assert threads() == ["card-discover"]


async def test_a_hanging_call_for_a_pod_does_not_delay_a_scan(source: Any, hang: threading.Event) -> None:
    slow = source(prepare=lambda self, request: hang.wait())
    slow.discover([])
    with pytest.raises(
        BackendTimeout, match=r"^backend card did not answer within 0\.05 s when serving a container$"
    ):
        await slow.call("serve", 0.05, slow.prepare, AllocateRequest(DEVICES))
    assert await slow.call("discover", None, slow.discover, []) == [Device("d0")]


async def test_optional_methods_are_called_if_they_are_defined(source: Any) -> None:
    heard: list[object] = []

    async def watch(self: Backend) -> AsyncIterator[Event]:
        yield Event("netlink")

    def probe(self: Backend, devices: Sequence[Device]) -> Mapping[str, Health]:
        return {device.id: unhealthy("down") for device in devices}

    plain = source()
    plain.discover([Event("tty")])
    assert (await plain.call("probe", None, plain.probe, [Device("d0")]), plain.watch()) == ({}, None)
    assert (plain.abilities.probe, plain.abilities.prepare) == (False, False)
    await plain.call("serve", 60.0, plain.prepare, AllocateRequest(DEVICES))

    rich = source(
        watch=watch,
        probe=probe,
        prepare=lambda self, request: heard.append(list(request.devices)),
        notice=lambda self, event: heard.append(event),
    )
    rich.discover([Event("tty"), Event("usb")])
    await rich.call("serve", 60.0, rich.prepare, AllocateRequest(DEVICES))
    assert heard == [Event("tty"), Event("usb"), [Device("d0")]]
    assert rich.abilities.probe
    assert rich.abilities.prepare
    assert await rich.call("probe", None, rich.probe, [Device("d0")]) == {"d0": unhealthy("down")}
    assert [event async for event in rich.watch()] == [Event("netlink")]


async def test_a_backend_gets_its_options_its_root_and_what_is_wanted(source: Any, tmp_path: Path) -> None:
    one = source()
    one.discover([])
    context = one.backend.context
    assert (one.backend.options, context.root, context.wanted) == (NoOptions(), tmp_path, {"model"})
    assert context.log.name == "devhost.backend.card"
    assert await context.run_blocking(lambda: threading.current_thread().name) == "card-watch"


async def test_paths_are_checked_below_the_root(source: Any, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/a").touch()
    one = source()
    assert one.existence.exists("/dev/a")
    assert not one.existence.exists("/dev/null")
    assert not one.existence.exists("/dev/\0")
    found: dict[str, bool] = {}
    one.existence.look(["/dev/a", "/dev/b"], found)
    assert found == {"/dev/a": True, "/dev/b": False}


@dataclass(frozen=True)
class Use:
    mode: str = "plain"


@dataclass(frozen=True)
class NewUse:
    mode: str = "new"


class Taking(Backend):
    name = "taking"
    ResourceOptions = Use


class Plain(Backend):
    name = "plain"


CONTEXT = ServiceContext("taking", Path("/"))


def test_a_backend_gets_the_first_options_that_are_of_its_class() -> None:
    # an edited drop-in: the file is read by the new class already, and the object of the old one still serves
    request = AllocateRequest(DEVICES, NewUse(), "example.com/x")
    own = own_request(Taking(None, CONTEXT), request, (NewUse("other"), Use("now"), Use("before")))
    assert own == AllocateRequest(DEVICES, Use("now"), "example.com/x")


def test_a_backend_without_options_for_resources_gets_none() -> None:
    own = own_request(Plain(None, CONTEXT), AllocateRequest(DEVICES, Use()))
    assert own == AllocateRequest(DEVICES, NoOptions())


def test_a_backend_without_its_options_is_not_called() -> None:
    with pytest.raises(BackendError, match="was not given its options"):
        own_request(Taking(None, CONTEXT), AllocateRequest(DEVICES, NewUse()), (None,))


async def test_a_backend_is_closed_after_its_last_scan(
    source: Callable[..., BackendRunner],
) -> None:
    looking, look, closed = threading.Event(), threading.Event(), threading.Event()

    def discover(self: Card) -> list[Device]:
        looking.set()
        look.wait(60)
        return []

    def close(self: Card) -> None:
        assert look.is_set()
        closed.set()

    one = source(discover=discover, close=close)
    task = asyncio.create_task(one.call("discover", None, one.discover, ()))
    await asyncio.to_thread(looking.wait, 60)
    one.close()
    task.cancel()
    look.set()
    assert await asyncio.to_thread(closed.wait, 60)


async def test_closing_a_backend_ends_the_thread_of_its_event_source(source: Any) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.endswith("-watch")]

    await until(lambda: not threads())
    one = source()
    await one.call("discover", None, one.discover, ())
    released = threading.Event()
    waiting = asyncio.create_task(one.context.run_blocking(released.wait))
    await until(threads)
    one.close()
    released.set()
    assert await waiting
    with pytest.raises(BackendTimeout, match="shutting down"):
        await one.context.run_blocking(int)
    await until(lambda: not threads())


async def test_a_backend_whose_close_fails_is_only_logged(
    source: Callable[..., BackendRunner], caplog: pytest.LogCaptureFixture
) -> None:
    def close(self: Card) -> None:
        raise OSError("it is stuck")

    one = source(close=close)
    await one.call("discover", None, one.discover, ())
    one.close()
    await until(lambda: "closing a backend failed" in caplog.messages)


async def test_pods_are_served_by_the_last_backend_that_has_discovered_devices(
    source: Callable[..., BackendRunner], tmp_path: Path
) -> None:
    first = source()
    first.discover(())
    second = BackendRunner(first.backend_class, NoOptions(), tmp_path, predecessor=first)
    third = BackendRunner(first.backend_class, NoOptions(), tmp_path, predecessor=second)
    assert second.serving is third.serving is first.backend
    third.discover(())
    assert third.serving is third.backend is not first.backend
    second.close()
    third.close()
