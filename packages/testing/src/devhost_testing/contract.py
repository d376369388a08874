"""The rules for every backend, as a test class to subclass: five lines in a third-party package.

::

    from devhost_testing.contract import BackendContract

    class TestMyKind(BackendContract):
        backend = MyKind

        def tree(self, root):
            (root / "dev").mkdir(parents=True)
            (root / "dev/mykind0").touch()

pytest runs each test below on a fresh tree. The tests work with any tree, so include the difficult cases of
the
hardware: identical devices, an unhealthy device, a device without its driver. :mod:`devhost_testing.trees`
helps to build it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from fnmatch import fnmatch
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, cast, get_args, get_type_hints

from devhost.allocation.device_info import flaw
from devhost.allocation.resource_backend import unclaimed
from devhost.backend import AllocateRequest, Backend, Conditions, Event, MissingDriver
from devhost.backend.base import overrides
from devhost.backend.errors import AllocationError, typed
from devhost.backend.model import Device, Edits, Health, unhealthy
from devhost.backend.sysfs import prefix_of
from devhost.discovery import catalog
from devhost.discovery.health import in_resource
from devhost.discovery.runner import ServiceContext, checked_edits
from devhost.discovery.validation import flaw_of
from devhost.host.node_labels import sorted_out

from . import faults

EVERYTHING = frozenset({"*"})
"""``context.wanted`` if every attribute is requested."""

ROUNDS = 25
"""How often the threads of a backend run at the same time."""

PROBES = 3
"""How often one that probes does, at least: a probe may be expensive."""

SWITCH = 0.0002
"""Seconds until another of these threads runs, which Python makes five milliseconds: one that only computes
would have that long for each file that another reads."""


class BackendContract:
    """The promises of a backend. Subclass it with a name that starts with ``Test``."""

    backend: ClassVar[type[Backend]]
    """The class under test."""

    options: ClassVar[object] = None
    """Its ``Options``; ``None`` for the defaults."""

    resource_options: ClassVar[Sequence[object]] = ()
    """Values of its ``ResourceOptions``, each of which is tested; empty for the defaults."""

    may_write: ClassVar[Collection[str]] = ()
    """Globs of files below the root that it may write to: ``sys/*/sriov_numvfs``."""

    def tree(self, root: Path) -> None:
        """Builds a machine with at least one healthy device below ``root``, which does not exist yet."""
        raise NotImplementedError(f"{type(self).__name__}.tree() must build a machine with a device")

    # The class itself

    def test_the_class_is_a_valid_backend(self) -> None:
        """The class can be installed: ``devhost plugins`` does not refuse it."""
        flaws = list(catalog.flaws(self.backend))
        assert not flaws, "; ".join(flaws)

    def test_every_attribute_has_a_meaning(self) -> None:
        """Users select devices by attributes; each has a meaning, and an example of its type."""
        for name, attribute in self.backend.attributes.items():
            assert attribute.meaning.strip(), f"attribute {name!r} has no meaning"
            kind = tuple if attribute.type is list else attribute.type
            assert type(attribute.example) is kind, (
                f"the example of attribute {name!r} is {attribute.example!r}, not a {attribute.type.__name__}"
            )
            flaw = flaw_of(Device("example", {name: attribute.example}), {name: attribute})
            assert not flaw, f"the example of {flaw}"

    def test_every_option_has_a_meaning(self) -> None:
        """Each field of ``Options``, of ``ResourceOptions`` and of dataclasses in them is an ``option(…,
        meaning)``."""
        for kind in (self.backend.Options, self.backend.ResourceOptions):
            dumb = [name for name, meaning in _options(kind) if not meaning.strip()]
            assert not dumb, f"options without a meaning: {', '.join(dumb)}"

    def test_resource_options_are_values(self) -> None:
        """For backends with ``ResourceOptions``: the core stores, compares and queries its values."""
        kind: Any = self.backend.ResourceOptions
        assert kind.__dataclass_params__.frozen, f"{kind.__name__} is not frozen"
        for use in self._uses():
            assert type(use) is kind, f"{use!r} is not a {kind.__name__}"
            assert replace(cast("Any", use)) == use, f"a copy of {use!r} is not equal to it"
            prepares, why_alone = getattr(use, "prepares", True), getattr(use, "why_alone", None)
            assert type(prepares) is bool, f"prepares of {use!r} is {prepares!r}, not a bool"
            assert isinstance(why_alone, str | None), (
                f"why_alone of {use!r} is {why_alone!r}, not a str or None"
            )
            uses = getattr(use, "uses", ())
            are_words = isinstance(uses, Collection) and not isinstance(uses, str)
            assert are_words and all(isinstance(word, str) for word in uses), (
                f"uses of {use!r} is {uses!r}, not a collection of str"
            )

    # What it finds

    def test_every_device_is_valid(self, tmp_path: Path) -> None:
        """Ids are valid and unique; attributes are declared, have their type and are never empty."""
        devices = self._found(self._machine(tmp_path))
        self._check(devices)
        self._healthy(devices)

    def test_parts_take_no_more_than_their_device_has(self, tmp_path: Path) -> None:
        """For devices with ``counters``: those of its parts that can be given together fit into them."""
        devices = self._found(self._machine(tmp_path))
        for whole in (one for one in devices if one.counters):
            taken: Counter[str] = Counter()
            claims: set[str] = set()
            for part in (one for one in devices if not whole.claims.isdisjoint(one.part_of)):
                unknown = part.consumes.keys() - whole.counters.keys()
                assert not unknown, f"{part.id} consumes {sorted(unknown)}, which {whole.id} does not have"
                if claims.isdisjoint(part.claims):
                    claims |= part.claims
                    taken.update(part.consumes)
            for name, amount in taken.items():
                assert amount <= whole.counters[name], (
                    f"the parts of {whole.id} take {amount} of the {whole.counters[name]} {name} that it "
                    "has: parts that exclude each other need a common claim"
                )

    def test_hardware_without_driver_is_named_with_a_reason(self, tmp_path: Path) -> None:
        """For backends with ``missing_drivers``: a subject, a reason, and declared attributes."""
        backend = self._made(self._machine(tmp_path))
        _scan(backend)
        for one in backend.missing_drivers():
            assert type(one) is MissingDriver, f"missing_drivers() returned {one!r}"
            assert one.subject.strip() and one.reason.strip(), f"{one!r} lacks its subject or reason"
            flaw = flaw_of(Device("example", one.attributes), self.backend.attributes)
            assert not flaw, f"{one.subject}: {flaw}"

    def test_two_scans_find_equal_devices(self, tmp_path: Path) -> None:
        """A device contains nothing that changes by itself, because each change causes a new plan."""
        backend = self._made(self._machine(tmp_path))
        assert _by_id(_scan(backend)) == _by_id(_scan(backend)), "a second scan found different devices"

    def test_a_restart_finds_equal_devices(self, tmp_path: Path) -> None:
        """Ids and everything else come from the machine, never from a counter or the order of events."""
        root = self._machine(tmp_path)
        assert _by_id(self._found(root)) == _by_id(self._found(root)), (
            "a new instance found different devices"
        )

    def test_the_order_of_directories_does_not_matter(self, tmp_path: Path) -> None:
        """Directories have no order: their order on this machine must not affect the result."""
        root = self._machine(tmp_path)
        first = _by_id(self._found(root))
        for backwards in (False, True):
            with faults.listing(backwards=backwards):
                assert _by_id(self._found(root)) == first, (
                    "a different order of directory entries led to different devices"
                )

    def test_wanted_attributes_exist_and_others_change_nothing(self, tmp_path: Path) -> None:
        """``context.wanted`` only avoids reads: it changes no id, no health and no value."""
        root = self._machine(tmp_path)
        full = _by_id(self._found(root))
        names = frozenset(name for device in full.values() for name in device.attributes)
        chosen = _by_id(self._found(root, names))
        assert chosen == full, (
            "requesting each attribute by name leads to different devices than requesting '*'"
        )
        bare = _by_id(self._found(root, frozenset()))
        assert bare.keys() == full.keys(), "requesting no attribute leads to different ids"
        for name, device in bare.items():
            known = full[name]
            assert (device.health, device.unusable_for, device.claims, device.part_of) == (
                known.health,
                known.unusable_for,
                known.claims,
                known.part_of,
            ), f"{name} has a different health or different claims depending on context.wanted"
            assert device.attributes.items() <= known.attributes.items(), (
                f"{name} has different attributes depending on context.wanted"
            )

    def test_a_machine_without_the_hardware_has_no_devices(self, tmp_path: Path) -> None:
        """Most nodes lack the hardware: no device, no exception, not even without ``/sys`` and ``/dev``.

        Only devices that ``options`` name may be listed, as unhealthy.
        """
        for name, directories in (("bare", ()), ("booted", ("sys/class", "sys/bus", "dev", "run", "proc"))):
            root = tmp_path / name
            root.mkdir()
            for directory in directories:
                (root / directory).mkdir(parents=True)
            found = self._found(root)
            self._check(found)
            extra = [d.id for d in found if d.health.healthy or self.options is None]
            assert not extra, f"found on an empty machine: {sorted(extra)}"

    def test_no_damaged_file_makes_discover_fail(self, tmp_path: Path) -> None:
        """Firmware and drivers can write anything; a damaged file must not hide the other devices.

        In a large tree a sample of the cases is tested, the rest in the next test.
        """
        root = self._machine(tmp_path)
        sample, _ = faults.cases(root)
        assert not (failures := self._failures_of_discover(root, sample)), failures

    def test_no_other_damage_makes_discover_fail(self, tmp_path: Path) -> None:
        """The same for all files and all kinds of damage that are not in the sample; this takes longer."""
        root = self._machine(tmp_path)
        _, others = faults.cases(root)
        assert not (failures := self._failures_of_discover(root, others)), failures

    def test_no_later_damage_makes_probe_fail(self, tmp_path: Path) -> None:
        """For backends with ``probe``, which reads after and during ``discover``."""
        if overrides(self.backend, "probe"):
            root = self._machine(tmp_path)
            sample, _ = faults.cases(root)
            assert not (failures := self._failures_of_probe(root, sample)), failures

    def test_no_other_later_damage_makes_probe_fail(self, tmp_path: Path) -> None:
        """The same for the cases that are not in the sample."""
        if overrides(self.backend, "probe"):
            root = self._machine(tmp_path)
            _, others = faults.cases(root)
            assert not (failures := self._failures_of_probe(root, others)), failures

    def test_vanished_hardware_is_not_healthy(self, tmp_path: Path) -> None:
        """After all files are removed: no healthy device, and allocate() raises AllocationError."""
        root = self._machine(tmp_path)
        backend = self._made(root)
        devices = _scan(backend)
        shutil.rmtree(root)
        root.mkdir()
        left = sorted(device.id for device in _scan(backend) if device.health.healthy)
        assert not left, f"healthy although all files are removed: {left}"
        for device in devices:
            with suppress(AllocationError):
                self._edits(backend, [device])

    # What it hands out

    def test_a_healthy_device_can_be_allocated(self, tmp_path: Path) -> None:
        """Paths are absolute, types are correct, and everything required exists on the host."""
        root = self._machine(tmp_path)
        backend = self._made(root)
        for device, use in self._usable(_scan(backend)):
            edits = self._edits(backend, [device], use)
            paths = [node.path for node in edits.nodes if node.required]
            paths += [mount.host_path for mount in edits.mounts if mount.required]
            missing = [path for path in paths if not os.path.lexists(root / path.lstrip("/"))]
            assert not missing, (
                f"{device.id} is healthy, but these paths do not exist on the host: {', '.join(missing)}"
            )

    def test_every_node_that_is_handed_out_is_claimed(self, tmp_path: Path) -> None:
        """Two pods never get one node: it is a claim of the device, or ``shared=True``.

        A node that several devices have in common and that no other device may have is in their ``part_of``.
        """
        root = self._machine(tmp_path)
        backend = self._made(root)
        for device, use in self._usable(_scan(backend)):
            left = unclaimed(self._edits(backend, [device], use), [device], prefix_of(root))
            nodes = ", ".join(sorted(text.removeprefix("node:") for text in left))
            assert not left, (
                f"{device.id} is given {nodes}, which it does not claim: add claim.node(…) to its claims or "
                "part_of, or shared=True to a DeviceNode that any number of containers use at the same time"
            )

    def test_allocating_again_gives_the_same_answer(self, tmp_path: Path) -> None:
        """The kubelet requests the same devices again, also after a restart of devhost."""
        root = self._machine(tmp_path)
        backend = self._made(root)
        devices = self._healthy(_scan(backend))
        restarted = self._made(root)
        _scan(restarted)
        for chosen, use in self._combinations(devices, *([device] for device in devices)):
            first = self._edits(backend, chosen, use)
            assert self._edits(backend, chosen, use) == first, "the answer for the same devices changed"
            assert self._edits(restarted, chosen, use) == first, "the answer changed after a restart"

    def test_several_devices_have_the_nodes_of_each(self, tmp_path: Path) -> None:
        """A container with two devices can use both, in any order."""
        backend = self._made(self._machine(tmp_path))
        devices = self._healthy(_scan(backend))
        for chosen, use in self._combinations(devices, devices[::-1]):
            together = _paths(self._edits(backend, chosen, use))
            for device in chosen:
                lost = _paths(self._edits(backend, [device], use)) - together
                assert not lost, f"{device.id} loses {sorted(lost)} in a container with several devices"

    def test_nothing_is_written(self, tmp_path: Path) -> None:
        """Scanning, probing and allocating do not change the machine; only ``prepare`` may."""
        root = self._machine(tmp_path)
        before = faults.contents(root)
        backend = self._made(root)
        devices = _scan(backend)
        backend.probe(devices)
        for chosen, use in self._combinations(self._healthy(devices)):
            self._edits(backend, chosen, use)
        after = faults.contents(root)
        changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
        changed = [path for path in changed if not any(fnmatch(path, glob) for glob in self.may_write)]
        assert not changed, f"it wrote to {', '.join(sorted(changed))}"

    # What else it can

    def test_probe_returns_health_with_reasons_for_existing_devices(self, tmp_path: Path) -> None:
        """For backends with ``probe``."""
        backend = self._made(self._machine(tmp_path))
        devices = _scan(backend)
        _check_verdicts(backend.probe(devices), devices)

    def test_device_info_is_valid_and_stable(self, tmp_path: Path) -> None:
        """For backends with ``device_info``: documents follow the NPWG specification."""
        backend = self._made(self._machine(tmp_path))
        devices = self._healthy(_scan(backend))
        for device, use in self._usable(devices):
            request = self._request([device], use)
            document = backend.device_info(device, request)
            assert document is None or not flaw(document), f"{device.id}: {flaw(document)}"
            assert backend.device_info(device, request) == document, f"{device.id}: the document changed"

    def test_labels_are_valid_and_independent_of_health(self, tmp_path: Path) -> None:
        """For backends with ``labels``, which are used to schedule pods."""
        backend = self._made(self._machine(tmp_path))
        devices = _scan(backend)
        for offered in ({}, {device.id: {"example.com/one": 2} for device in devices}):
            found = backend.labels(devices, offered)
            _, wrong = sorted_out(found.items())
            assert not wrong, f"labels() returned an invalid label: {wrong[0]}"
            others = [replace(device, health=unhealthy("it failed")) for device in reversed(devices)]
            assert backend.labels(others, offered) == found, "labels() depends on health or on the order"
        backend.labels([], {})

    def test_watch_starts_and_can_be_cancelled(self, tmp_path: Path) -> None:
        """For backends with ``watch``: it does not fail at once, and ends when it is cancelled."""
        backend = self._made(self._machine(tmp_path))
        _scan(backend)
        if overrides(self.backend, "watch"):
            try:
                asyncio.run(_start_and_stop(backend))
            finally:
                cast("ServiceContext", backend.context).close()

    def test_concurrent_calls_do_not_interfere(self, tmp_path: Path) -> None:
        """The core calls ``discover``, ``allocate`` and ``probe`` concurrently, each on its own thread."""
        backend = self._made(self._machine(tmp_path))
        devices = _scan(backend)
        healthy = self._healthy(devices)
        expected = _by_id(devices), self._edits(backend, healthy)
        calls: list[tuple[Callable[[], object], object]] = [
            (lambda: _by_id(_scan(backend)), expected[0]),
            (lambda: self._edits(backend, healthy), expected[1]),
        ]
        names = "discover() and allocate()"
        if overrides(self.backend, "probe"):
            calls.append((partial(backend.probe, devices), backend.probe(devices)))
            names = "discover(), allocate() and probe()"
        findings: list[str] = []
        together, over = threading.Barrier(len(calls)), threading.Event()
        wanted = [ROUNDS, ROUNDS, PROBES][: len(calls)]

        def repeat(number: int, call: Callable[[], object], right: object) -> None:
            try:
                together.wait()
                while max(wanted) > 0 and not findings and not over.is_set():
                    if call() != right:
                        findings.append("a different answer than without other calls")
                    wanted[number] -= 1
            except Exception as error:  # noqa: BLE001 - every exception is a finding
                findings.append(typed(error))

        threads = [
            threading.Thread(target=repeat, args=(number, *call), daemon=True)
            for number, call in enumerate(calls)
        ]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60.0)
                assert not thread.is_alive(), f"{names} wait for each other"
        finally:
            over.set()
            sys.setswitchinterval(interval)
        assert not findings, f"{names} at the same time: {findings[0]}"

    def _failures_of_discover(self, root: Path, cases: Sequence[tuple[Path, str]]) -> str:
        """The cases in which ``discover`` raises or returns something wrong; empty if there are none."""
        return _failures("discover", root, cases, lambda: self._check(self._found(root)))

    def _failures_of_probe(self, root: Path, cases: Sequence[tuple[Path, str]]) -> str:
        backend = self._made(root)
        devices = _scan(backend)
        return _failures("probe", root, cases, lambda: _check_verdicts(backend.probe(devices), devices))

    def _machine(self, tmp_path: Path) -> Path:
        root = tmp_path / "root"
        root.mkdir()
        self.tree(root)
        return root

    def _made(self, root: Path, wanted: Collection[str] = EVERYTHING) -> Backend:
        options = self.backend.Options() if self.options is None else self.options
        return self.backend(options, ServiceContext(self.backend.name, root, wanted))

    def _found(self, root: Path, wanted: Collection[str] = EVERYTHING) -> list[Device]:
        return _scan(self._made(root, wanted))

    def _healthy(self, devices: Iterable[Device]) -> list[Device]:
        healthy = [device for device in devices if device.health.healthy]
        assert healthy, "tree() has no healthy device, so there is nothing to test"
        return healthy

    def _uses(self) -> Sequence[object]:
        """The options of resources to test."""
        if self.resource_options:
            return self.resource_options
        try:
            return (self.backend.ResourceOptions(),)
        except TypeError as error:
            raise AssertionError(f"{error}: set resource_options, because there are no defaults") from error

    def _combinations(self, *sets: Sequence[Device]) -> Iterator[tuple[list[Device], object]]:
        """Sets of devices with each use; of each set those that are healthy for it."""
        for devices, use in product(sets, self._uses()):
            uses = getattr(use, "uses", ())
            if some := [device for device in devices if in_resource(device, device.health, uses).healthy]:
                yield some, use

    def _usable(self, devices: Sequence[Device]) -> Iterator[tuple[Device, object]]:
        """Each device with each use that it is healthy for."""
        for (device,), use in self._combinations(*([device] for device in self._healthy(devices))):
            yield device, use

    def _edits(self, backend: Backend, devices: Sequence[Device], use: object = None) -> Edits:
        edits = backend.allocate(self._request(devices, self._uses()[0] if use is None else use))
        assert isinstance(edits, Edits), f"allocate() returned {type(edits).__name__}, not Edits"
        checked_edits(edits, f"backend {self.backend.name}")
        return edits

    def _request(self, devices: Sequence[Device], use: object) -> AllocateRequest:
        return AllocateRequest(tuple(devices), use, "example.com/resource")

    def _check(self, devices: Sequence[Device]) -> None:
        for device in devices:
            flaw = flaw_of(device, self.backend.attributes, self.backend.claim_kinds)
            assert not flaw, f"device {device!r}: {flaw}"
            assert all(node >= 0 for node in device.numa_nodes), f"{device.id} has a negative NUMA node"
            empty = [name for name, value in device.attributes.items() if value in ("", ())]
            assert not empty, f"{device.id} has empty attributes (omit them): {', '.join(empty)}"
            _check_health(device.id, device.health)
        assert len(_by_id(devices)) == len(devices), "two devices have one id"


def _failures(
    method: str, root: Path, cases: Sequence[tuple[Path, str]], attempt: Callable[[], object]
) -> str:
    """A line for each damage that makes the attempt fail."""
    failures = []
    for path, what in cases:
        with faults.damaged(path, what, root.parent / "kept"):
            try:
                attempt()
            except Exception as error:  # noqa: BLE001 - every exception is a finding
                failures.append(f"{path.relative_to(root)} {what}: {typed(error)}")
    return "\n".join([f"{method}() must not fail:", *failures]) if failures else ""


def _scan(backend: Backend) -> list[Device]:
    """Scans like the core at a resync: anything may have changed."""
    backend.notice(Event())
    return list(backend.discover())


def _by_id(devices: Iterable[Device]) -> dict[str, Device]:
    return {device.id: device for device in devices}


def _paths(edits: Edits) -> set[str]:
    return {node.path for node in edits.nodes} | {mount.host_path for mount in edits.mounts}


def _check_verdicts(verdicts: Mapping[str, Health], devices: Sequence[Device]) -> None:
    assert verdicts.keys() <= _by_id(devices).keys(), "probe() names devices that do not exist"
    for name, health in verdicts.items():
        _check_health(name, health)


def _check_health(device: str, health: Health) -> None:
    assert isinstance(health, Health), f"the health of {device} is {health!r}, not a Health"
    assert health.healthy is not bool(health.reason), (
        f"{device} must have a reason if and only if it is unhealthy"
    )


def _options(kind: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every option with its meaning, including those of nested dataclasses."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        name = f"{path}{field.name}"
        yield name, str(field.metadata.get("meaning", ""))
        for inner in _dataclasses(hints[field.name]):
            yield from _options(inner, f"{name}.")


def _dataclasses(hint: object) -> Iterator[object]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    if any(isinstance(note, Conditions) for note in getattr(hint, "__metadata__", ())):
        return  # it has the format of `where`, whose parts are not options
    for argument in get_args(hint):
        yield from _dataclasses(argument)


async def _start_and_stop(backend: Backend) -> None:
    async def follow() -> None:
        async for _ in backend.watch():
            pass

    task = asyncio.create_task(follow())
    done, _ = await asyncio.wait([task], timeout=0.2)
    for ended in done:
        ended.result()
    task.cancel()
    _, left = await asyncio.wait([task], timeout=60.0)
    assert not left, "watch() does not end when it is cancelled"
