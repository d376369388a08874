"""The backend of one resource as Allocate uses it: asked what a container needs, and its answer checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from os.path import realpath
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from devhost.backend import AllocateRequest, Consumed, NoOptions, claim, templates
from devhost.backend.errors import AllocationError, BackendError, absent_paths, one_line, words
from devhost.backend.frozen import frozen
from devhost.backend.model import Device, DeviceNode, Edits, Mount, too_large
from devhost.backend.sysfs import is_regular, node_number, read_lines
from devhost.discovery.runner import MAX_NODES, BackendRunner, checked_edits
from devhost.discovery.scanner import Scanner
from devhost.planning.amounts import NO_LIMIT, Limit
from devhost.planning.give import NO_GIVE, Give
from devhost.planning.naming import variable
from devhost.planning.settings import ResourceSettings, prepares

from .device_info import Document, flaw
from .given import may_be_node

if TYPE_CHECKING:
    from fractions import Fraction  # with decimal 0.5 MB, only where a backend takes shares

EVERYWHERE = frozenset(
    f"/dev/{name}" for name in ("console", "full", "null", "ptmx", "random", "tty", "urandom", "zero")
)
"""The nodes that every container has (OCI runtime specification, "Default Devices")."""

_NO_NODES = ("/dev/hugepages/", "/dev/mqueue/", "/dev/pts/", "/dev/shm/")
"""Directories in ``/dev`` whose files are no devices, in a recorded tree, where files represent nodes."""

_ORDINARY = frozenset("rw")
_NO_OPTIONS = NoOptions()

P = ParamSpec("P")
T = TypeVar("T")
Thing = DeviceNode | Mount


class MissingPath(AllocationError):
    """Something a device needs does not exist on the host."""


@frozen(slots=True)
class Granted:
    """What a container gets; ``left_out`` are host paths of optional parts that do not exist."""

    edits: Edits
    left_out: frozenset[str] = frozenset()

    def nodes(self) -> list[str]:
        return [node.path for node in self.edits.nodes if node.path not in self.left_out]


@frozen
class Terms:
    """The terms on which the devices of a resource are handed out: a container keeps those it got them on.

    ``options`` is the value of the backend's ``ResourceOptions``, ``None`` where it has none;
    ``permissions`` are those of the device nodes, empty where the backend decides; ``shares`` is how much
    the container asks for of each device, by id, empty where the backend does not use it. ``give`` is what
    the entry gives, ``whole`` the number of the resource's devices, 0 where that does not matter, and
    ``of`` the attribute whose values make units of them; empty if there are none.
    ``consumed`` is what a claim uses of each device, by id, if claims share by amount, and ``limit`` how
    its containers are limited to that.
    """

    options: object = None
    permissions: str = ""
    give: Give = NO_GIVE
    whole: int = 0
    of: str = ""
    shares: Mapping[str, Fraction] = field(default_factory=dict)
    consumed: Mapping[str, Mapping[str, Consumed]] = field(default_factory=dict)
    limit: Limit = NO_LIMIT


@frozen(slots=True)
class Answer:
    """What a backend answered: for which devices, or what of the host each of them lacks.

    ``left_out`` are devices that others replace, each with the reason; ``lacking`` may name them too.
    ``unclaimed`` are the claims of nodes that the devices do not claim, see :class:`.UnclaimedNodes`.
    """

    granted: Granted
    devices: Sequence[Device]
    lacking: Mapping[str, Sequence[str]]
    left_out: Mapping[str, str]
    unclaimed: frozenset[str] = frozenset()


class ResourceBackend:
    """Asks the backend of one resource.

    Its methods raise ``BackendError`` if the backend fails, hangs, or its answer is unusable.
    """

    def __init__(self, resource: str, scanner: Scanner, entry: ResourceSettings) -> None:
        self.resource = resource
        self.scanner = scanner
        self.terms = _terms(entry)
        """Those of the containers to come."""
        self._whole = bool(entry.share.attribute)
        """Whether the devices behind a token are given together or not at all."""
        self._before: object = None
        """The options of before their class changed."""

    @property
    def runner(self) -> BackendRunner:
        return self.scanner.runner

    def follow(self, scanner: Scanner, entry: ResourceSettings, devices: int = 0) -> None:
        """Uses these from now on; containers keep the terms on which they got their devices.

        ``devices`` is how many the resource has, 0 if that is not known.
        """
        if type(entry.options) is not type(self.terms.options):
            self._before = self.terms.options
        self.scanner = scanner
        self.terms = _terms(entry, devices)
        self._whole = bool(entry.share.attribute)

    async def call(self, deadline: float, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs one of the methods below on the backend's thread, for at most ``deadline`` seconds."""
        return await self.runner.call("serve", deadline, call, *args, **kwargs)

    async def prepare(self, deadline: float, devices: Sequence[Device], terms: Terms) -> None:
        """Calls ``prepare`` of a backend that has it and wants it, for at most ``deadline`` seconds."""
        if self.runner.abilities.prepare and prepares(terms.options):
            request = AllocateRequest(tuple(devices), terms.options, self.resource)
            former = (self.terms.options, self._before)
            await self.call(deadline, self.runner.prepare, request, former)

    def ask(self, devices: Sequence[Device], terms: Terms = Terms()) -> Granted:
        """What a container would get with these devices on these terms now. Runs on the backend's thread.

        Raises ``MissingPath`` if something a device needs is missing on the host, ``AllocationError`` if the
        backend refuses a device now.
        """
        granted, missing = self._edits(devices, terms)
        if missing:
            raise self.lacking(missing)
        return granted

    def numbers(self, granted: Granted) -> dict[str, str]:
        """The nodes of an answer, also mounted ones, with their numbers. Runs on the backend's thread."""
        prefix = self.runner.prefix
        paths = granted.nodes()
        mounts = (mount.host_path for mount in granted.edits.mounts)
        paths += [path for path in mounts if may_be_node(path) and is_node(prefix, path)]
        return {path: node_number(prefix + path) for path in paths}

    def lacking(self, missing: Mapping[str, Sequence[str]]) -> MissingPath:
        """The error for paths that devices lack, by the devices' ids."""
        paths = sorted({path for paths in missing.values() for path in paths})
        silent = [path for path in paths if self.runner.existence.is_silent(path)]
        return MissingPath(f"{self.resource}: {absent_paths(paths, silent)}")

    def documents(self, devices: Sequence[Device], terms: Terms) -> dict[str, Document]:
        """The device-info of these devices, by id. Runs on the backend's thread."""
        documents: dict[str, Document] = {}
        request = self._request(devices, terms)
        for device in devices:
            if (document := self.runner.device_info(device, request, (self._before,))) is not None:
                if wrong := flaw(document):
                    raise BackendError(f"backend {self.runner.name} gave unusable device-info: {wrong}")
                documents[device.id] = document
        return documents

    def answer(self, wanted: Sequence[Sequence[Device]], terms: Terms) -> Answer:
        """Asks for the devices behind some tokens. Runs on the backend's thread.

        Where there are more than there must be, those that cannot be used are left out. If the backend gives
        nothing at all for some token, that is an ``AllocationError``; or ``BackendError`` if it failed for
        some device.
        """
        answer = self._answered(wanted, terms)
        if not answer.devices:
            return answer
        granted = answer.granted
        nodes = unclaimed(granted.edits, answer.devices, self.runner.prefix, granted.left_out)
        return replace(answer, unclaimed=nodes) if nodes else answer

    def _answered(self, wanted: Sequence[Sequence[Device]], terms: Terms) -> Answer:
        devices = each_once(wanted)
        must = self._whole or all(len(some) == 1 for some in wanted)
        try:
            granted, lacking = self._edits(devices, terms)
        except Exception:  # third-party code may raise anything, and one device must not fail a pod
            if must:
                raise
        else:
            if must or not lacking:
                return Answer(granted, () if lacking else devices, lacking, {})
        return self._answer_without_some(wanted, devices, terms)

    def _answer_without_some(
        self, wanted: Sequence[Sequence[Device]], devices: Sequence[Device], terms: Terms
    ) -> Answer:
        left_out: dict[str, str] = {}
        lacking: dict[str, list[str]] = {}
        failed = False
        for device in devices:
            try:
                _, missing = self._edits([device], terms)
            except BackendError as error:
                left_out[device.id] = words(error) or type(error).__name__
                failed = failed or not isinstance(error, AllocationError)
            except Exception as error:  # noqa: BLE001 - third-party code may raise anything
                left_out[device.id] = f"backend {self.runner.name} failed: {one_line(error)}"
                failed = True
            else:
                lacking |= missing
                left_out |= {name: f"{', '.join(paths)} does not exist" for name, paths in missing.items()}
        rest = [[device for device in some if device.id not in left_out] for some in wanted]
        if not all(rest):
            if lacking:
                return Answer(Granted(Edits()), (), lacking, {})
            kind = BackendError if failed else AllocationError
            raise kind("; ".join(dict.fromkeys(left_out.values())))
        granted, missing = self._edits(each_once(rest), terms)
        return Answer(granted, () if missing else each_once(rest), lacking | missing, left_out)

    def _edits(self, devices: Sequence[Device], terms: Terms) -> tuple[Granted, dict[str, list[str]]]:
        """Asks the backend and checks its answer against the host. Runs on the backend's thread."""
        edits = permitted(self._asked(devices, terms), terms.permissions)
        if wrong := too_large(edits.env):
            raise AllocationError(f"{self.resource}: {wrong}")
        absent = {path for path in _paths(edits, required=True) if not self.runner.existence.exists(path)}
        if absent:
            return Granted(edits), self._blame(devices, terms, absent)
        edits = self._one_each(edits)
        optional = {path for path in _paths(edits, required=False) if not self.runner.existence.exists(path)}
        return Granted(edits, frozenset(optional)), {}

    def _asked(self, devices: Sequence[Device], terms: Terms) -> Edits:
        """What the backend and the entry give, each thing once."""
        answer = self.runner.allocate(self._request(devices, terms), (self._before,))
        edits = checked_edits(answer, f"backend {self.runner.name}")
        if self.scanner.handover is not None:
            edits = self._with_additions(edits, devices)
        edits = named(Edits.merge([edits]), self.resource)
        if terms.consumed and terms.limit.env:
            edits = self._limited(edits, devices, terms)
        if terms.give is NO_GIVE:
            return edits
        from devhost.planning.give.edits import completed  # most nodes have no entry with give

        edits = completed(edits, terms.give, devices, self.resource, terms.whole, terms.of)
        self._check_count(edits, "give")
        return edits

    def _with_additions(self, edits: Edits, devices: Sequence[Device]) -> Edits:
        """The same with what hooks added for these devices."""
        assert self.scanner.handover is not None
        added = self.scanner.handover.additions(self.runner.name, devices)
        absent = [path for path in _paths(added, required=True) if not self.runner.existence.exists(path)]
        if absent:  # the devices do not wait for it, because only a hook may make it
            reason = f"{absent_paths(absent)}: a hook gave {'them' if absent[1:] else 'it'}"
            raise AllocationError(f"{self.resource}: {reason}")
        found = Edits.merge([edits, added])
        self._check_count(found, "hooks")
        return found

    def _check_count(self, edits: Edits, by: str) -> None:
        if (count := len(edits.nodes)) > MAX_NODES:
            reason = f"with {by}, a container would get {count} device nodes, more than {MAX_NODES}"
            raise AllocationError(f"{self.resource}: {reason}")

    def _limited(self, edits: Edits, devices: Sequence[Device], terms: Terms) -> Edits:
        limits = terms.limit.variables(devices, terms.consumed)
        if twice := sorted(limits.keys() & edits.env.keys()):
            reason = f"the backend sets {twice[0]}, and so does share.limit of the entry"
            raise AllocationError(f"{self.resource}: {reason} (rename it there)")
        return replace(edits, env={**edits.env, **limits})

    def _request(self, devices: Sequence[Device], terms: Terms) -> AllocateRequest:
        options = _NO_OPTIONS if terms.options is None else terms.options
        consumed = terms.consumed if terms.consumed and terms.limit.by_backend else {}
        return AllocateRequest(tuple(devices), options, self.resource, terms.shares, consumed)

    def _one_each(self, edits: Edits) -> Edits:
        """The same with one thing at each container path: what is required, else the first that there is.

        Two different things that are required at one path are refused: a container that was to have both
        would have one and not know it.
        """

        def chosen(where: str, wanted: Sequence[Thing]) -> Thing:
            required = [thing for thing in wanted if thing.required]
            if len(required) > 1:
                both = " and ".join(map(_source, required[:2]))
                reason = f"{both} are both to be {where} in the container, which can have one of them"
                raise AllocationError(f"{self.resource}: {reason}")
            there = (thing for thing in wanted if self.runner.existence.exists(_source(thing)))
            return required[0] if required else next(there, wanted[0])

        places = _by_place((*edits.nodes, *edits.mounts))
        if len(places) == len(edits.nodes) + len(edits.mounts):
            return edits
        kept = [chosen(where, wanted) for where, wanted in places.items()]
        return replace(
            edits,
            nodes=tuple(one for one in kept if isinstance(one, DeviceNode)),
            mounts=tuple(one for one in kept if isinstance(one, Mount)),
        )

    def _blame(self, devices: Sequence[Device], terms: Terms, absent: set[str]) -> dict[str, list[str]]:
        """Which of several devices lacks what: each is asked for alone; all, if none admits it."""
        if len(devices) == 1:
            return {devices[0].id: sorted(absent)}
        blame = {}
        for device in devices:
            edits = self._asked([device], terms)
            own = set(_paths(edits, required=True)) & absent
            if own:
                blame[device.id] = sorted(own)
        return blame or {device.id: sorted(absent) for device in devices}


def _terms(entry: ResourceSettings, devices: int = 0) -> Terms:
    if entry.give is NO_GIVE:
        return Terms(entry.options, entry.permissions, limit=entry.share.limit)
    whole, of = devices if entry.give.depends_on_count else 0, entry.share.attribute
    return Terms(entry.options, entry.permissions, entry.give, whole, of, limit=entry.share.limit)


def each_once(sets: Iterable[Sequence[Device]]) -> list[Device]:
    return list({device.id: device for some in sets for device in some}.values())


def permitted(edits: Edits, permissions: str) -> Edits:
    """The same edits with these permissions for device nodes; unchanged where they are empty.

    A node for which the backend asks for less than ``rw`` is never widened: it keeps what both allow. Raises
    ``AllocationError`` if a node is left with nothing by which it could be opened.
    """
    if not permissions:
        return edits
    nodes = []
    for node in edits.nodes:
        allowed = permissions
        if not _ORDINARY.issubset(node.permissions):
            allowed = "".join(letter for letter in node.permissions if letter in permissions)
            if _ORDINARY.isdisjoint(allowed):
                why = f"it is given with {node.permissions!r} only, and the resource allows {permissions!r}"
                raise AllocationError(f"no permissions are left for {node.path}: {why}")
        nodes.append(replace(node, permissions=allowed))
    return replace(edits, nodes=tuple(nodes))


def named(edits: Edits, resource: str) -> Edits:
    """The same edits with the resource's name in those variables that ask for it."""
    if not any("{" in name for name in edits.env):
        return edits
    env: dict[str, str] = {}
    for name, value in edits.env.items():
        env.setdefault(variable(name, resource), value)
    return replace(edits, env=env)


def _source(thing: DeviceNode | Mount) -> str:
    return thing.path if isinstance(thing, DeviceNode) else thing.host_path


def _by_place(things: Iterable[Thing]) -> dict[str, list[Thing]]:
    """Things by where a container sees them, however the path is written."""
    found: dict[str, list[Thing]] = {}
    for thing in things:
        found.setdefault(templates.place(thing.container_path or _source(thing)), []).append(thing)
    return found


def _paths(edits: Edits, *, required: bool) -> list[str]:
    nodes = [node.path for node in edits.nodes if node.required is required]
    return nodes + [mount.host_path for mount in edits.mounts if mount.required is required]


def unclaimed(
    edits: Edits, devices: Collection[Device], prefix: str, left_out: Collection[str] = ()
) -> frozenset[str]:
    """The claims of nodes that these devices neither claim nor are part of. May block.

    Not counted are nodes that the backend declares as shared (:attr:`devhost.backend.DeviceNode.shared`),
    those that every container has, and those in a directory that is mounted: they may change later.

    For ``prefix`` see :func:`~devhost.backend.sysfs.prefix_of`. ``left_out`` are host paths of optional parts
    that do not exist.
    """
    known = {one for device in devices for one in (*device.claims, *device.part_of)}
    found = {text for text in _claims(edits, prefix, left_out, known) if text not in known}
    if not found:
        return frozenset()
    nodes = (one.removeprefix("node:") for one in known if one.startswith("node:"))
    numbers = {number for node in nodes if (number := node_number(realpath(prefix + node)))}
    own = {text: node_number(realpath(prefix + text.removeprefix("node:"))) for text in found}
    return frozenset(text for text in found if own[text] not in numbers)


def _claims(edits: Edits, prefix: str, left_out: Collection[str], known: Collection[str]) -> Iterator[str]:
    paths = [node.path for node in edits.nodes if not node.shared]
    paths += [mount.host_path for mount in edits.mounts if is_node(prefix, mount.host_path)]
    for path in paths:
        # what is claimed by the name in the answer, as usual, needs no other name
        if path in left_out or path in EVERYWHERE or f"node:{path}" in known:
            continue
        node = _canonical(prefix, path)
        if node not in EVERYWHERE:
            try:
                yield claim.node(node)
            except ValueError:
                continue  # a path that nothing can claim


def _canonical(prefix: str, path: str) -> str:
    """The name that the kernel gives a node; else the path without links."""
    real = realpath(prefix + path)
    number = node_number(real)
    if number:
        kind = "char" if number[0] == "c" else "block"
        for line in read_lines(f"{prefix}/sys/dev/{kind}/{number[1:]}/uevent"):
            name = line.removeprefix("DEVNAME=")
            if name != line and node_number(f"{prefix}/dev/{name}") == number:
                return f"/dev/{name}"
    inside = real.removeprefix(prefix)
    return inside if real.startswith(f"{prefix}/") else path


def is_node(prefix: str, path: str) -> bool:
    """Whether the source of a mount is a device node, or a file that represents one. May block."""
    real = realpath(prefix + path)
    if node_number(real):
        return True
    represents = bool(prefix) and path.startswith("/dev/") and not path.startswith(_NO_NODES)
    return represents and is_regular(real)
