"""The class that a backend derives from, and the values its methods receive."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeVar, overload

from .model import NOTHING, AttributeValue, Device, Edits, Health, freeze
from .observe import ObserverHooks, hookspec

if TYPE_CHECKING:
    from fractions import Fraction  # with decimal 0.5 MB, only where a backend takes shares

API_VERSION = 1
"""Version of this API. It grows only when a backend written for the old one would break."""

P = ParamSpec("P")
T = TypeVar("T")

Offered = Mapping[str, Mapping[str, int]]
"""How often devices are handed out: by the device's id, then by the name of each resource that has it."""


class Hooks(ObserverHooks):
    """The hooks a plugin may implement: the one that brings backends, and those of observers."""

    @hookspec
    def devhost_backends(self) -> Iterable[type[Backend]]:  # type: ignore[empty-body]
        """The backend classes this plugin brings. Called once per start and per reload."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """Declares one attribute: its type, what it means, and an example value.

    ``type`` is ``str``, ``int``, ``bool`` or ``list`` (of strings: a condition holds when any member
    matches). ``hex`` compares a string without regard to case, as ids such as ``1A86`` want it.
    ``words`` are all the values that a text can have, or a member of a list, where the backend's own code
    makes them: a condition that none of them meets is then an error in the configuration, and a device with
    another value is left out. Empty where the kernel or a vendor may come up with new ones.
    ``reveals`` is true for the attribute that names devices made of several parts: a block of ``where``
    that names it also sees the attributes that such a device inherited (:attr:`Device.inherited`).

    In :attr:`Backend.attributes` a key that ends in ``*`` declares a family (``sysattr.*``).
    """

    type: type[str] | type[int] | type[bool] | type[list[str]]
    meaning: str
    example: AttributeValue
    hex: bool = False
    words: tuple[str, ...] = ()
    reveals: bool = False


@dataclass(frozen=True, slots=True)
class Conditions:
    """In ``Annotated[Where, Conditions(…)]``: an option that is written like ``where`` of a resource.

    ``backend`` and ``attributes`` are the backend's own. The value is what :mod:`devhost.backend.where`
    compiles; an option that is absent has its default, such as an empty tuple.
    """

    backend: str
    attributes: Mapping[str, Attribute]

    def __post_init__(self) -> None:
        freeze(self, ("attributes",))


@overload
def option(default: None, meaning: str = "", *, example: object = None, implied_by: str = "") -> Any: ...


@overload
def option(default: T, meaning: str = "", *, example: object = None, implied_by: str = "") -> T: ...


@overload
def option(*, meaning: str = "", example: object = None, implied_by: str = "") -> Any: ...


def option(default: Any = MISSING, meaning: str = "", *, example: object = None, implied_by: str = "") -> Any:
    """A field of an ``Options`` dataclass, with the sentence the reference and the schema show.

    Without ``default`` the option must be given. A list, dict or set as default is copied. An option of
    :attr:`Backend.ResourceOptions` that the file does not give is ``True`` in an entry whose ``where``
    selects nothing but devices of which the attribute ``implied_by`` is true.
    """
    metadata = {"meaning": meaning, "example": example, "implied_by": implied_by}
    if default is MISSING:
        return field(metadata=metadata)
    if isinstance(default, (list, dict, set)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


class OptionError(ValueError):
    """Raised in ``Options.__post_init__``: ``key`` is the YAML key at fault, ``hint`` how to fix it.

    Where the fault is a misspelt ``word``, ``known`` are the right ones: the hint then is the nearest of
    them, or a list.
    """

    def __init__(
        self, message: str, *, key: str = "", hint: str = "", word: str = "", known: Collection[str] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.hint = hint
        self.word = word
        self.known = known


@dataclass(frozen=True)
class NoOptions:
    """The options of a backend that has none."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened near a device: look again. It carries no truth, only where to look.

    ``sys_path`` is the device's directory below ``/sys`` as the kernel names it
    (``/sys/devices/…``); an empty one means "anything may have changed" (a resync, an overflow).
    """

    subsystem: str = ""
    action: str = ""
    sys_path: str = ""
    dev_node: str = ""


@dataclass(frozen=True, slots=True)
class MissingDriver:
    """Hardware that is present and that no device can be made of, because its driver is missing.

    ``subject`` names it for a person who looks for it on the node: ``0000:3b:00.0 (10de:2330)``. ``reason``
    says what is missing, and in parentheses how to fix it: ``no driver is bound to it (install NVIDIA's
    driver, then run modprobe nvidia)``. ``attributes`` are those that its devices would surely have; an entry
    whose ``where`` contradicts them does not want it.
    """

    subject: str
    reason: str
    attributes: Mapping[str, AttributeValue] = NOTHING

    def __post_init__(self) -> None:
        freeze(self, ("attributes",))


class Context(Protocol):
    """What the core gives a backend, and all it gives."""

    @property
    def log(self) -> logging.Logger:
        """A logger that carries the backend's name."""

    @property
    def root(self) -> Path:
        """Directory that stands for ``/``: read ``/sys``, ``/dev``, ``/proc`` and ``/run`` below it."""

    @property
    def wanted(self) -> Collection[str]:
        """Attribute names that the configuration looks at now; expensive ones not in it need not be read.

        ``"*"`` in it asks for everything (``devhost discover`` and ``explain`` do).
        """

    @property
    def entries(self) -> Collection[object]:
        """What the entries of the file say to this backend: the values of its ``ResourceOptions``.

        Another file may bring others while the backend object stays; it is then asked to look again.
        """

    def held(self) -> frozenset[str] | None:
        """What containers use now: every claim and ``part_of`` of the devices they have, of all backends.

        The devices themselves are in it as ``device:<backend>/<id>``. ``None`` while it is not known who has
        what: then nothing that a container might use may be changed. May be called from any thread.
        """

    async def run_blocking(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking call for :meth:`Backend.watch` on a thread of its own, with a deadline."""


@dataclass(frozen=True, slots=True)
class AllocateRequest:
    """What one container asks for, or was given: some devices of one resource.

    ``devices``
        The devices, at least one, each once.
    ``options``
        What the entry of the resource says: the value of :attr:`Backend.ResourceOptions`. The request is
        hashable if this is.
    ``resource``
        The name of the resource: ``example.com/serial``.
    ``shares``
        How much of each device the container asks for, by the device's id: two of the four times that it is
        handed out are ``Fraction(2, 4)``. A device that is not in it is given as a whole. Filled only for
        :meth:`Backend.allocate` of a backend that :attr:`Backend.takes_shares`.
    """

    devices: Sequence[Device]
    options: Any = NoOptions()
    resource: str = ""
    shares: Mapping[str, Fraction] = NOTHING

    def __post_init__(self) -> None:
        freeze(self, ("shares",), ("devices",))

    def variable(self, prefix: str, suffix: str = "", *, keep_hyphens: bool = False) -> str:
        """The name of an environment variable that no other resource sets in the same container.

        ``WATCHDOG_EXAMPLE_COM_TIMER`` for the prefix ``WATCHDOG`` and the resource ``example.com/timer``:
        upper case, with ``_`` for all but letters and digits.

        Args:
            keep_hyphens: whether hyphens stay, for programs that expect them although a shell cannot expand
                such a variable.
        """
        name = re.sub(r"[^A-Z0-9-]" if keep_hyphens else r"[^A-Z0-9]", "_", self.resource.upper())
        return "_".join(filter(None, (prefix, name, suffix)))


class Backend:
    """One kind of hardware. Subclass it, set the class attributes, and write ``discover`` and ``allocate``.

    Every other method is optional: here it does nothing, and the core only uses those that a class overrides.
    A method whose name is nearly one of these is refused when the class is loaded.
    """

    name: ClassVar[str]
    """The word in the YAML: lower-case letters, digits and hyphens."""

    api_version: ClassVar[int] = API_VERSION
    """The :data:`API_VERSION` this backend was written for."""

    Options: ClassVar[type] = NoOptions
    """A frozen dataclass; its fields, in camelCase, are the keys under ``backends.<name>``.

    A class variable ``former_keys: Mapping[str, str]`` of it, or of any dataclass of options, has what to say
    of keys that earlier versions had.
    """

    ResourceOptions: ClassVar[type] = NoOptions
    """A frozen dataclass; its fields, in camelCase, are further keys of an entry under ``resources``.

    Its value is in :attr:`AllocateRequest.options`. Editing the keys changes the resource in place: what a
    container has stays as it is, also when it starts again, as long as this process lives. A field must not
    have the name of a key that every entry has. Some members of the class mean something to the core, each a
    field or a property, the last a method:

    ``prepares: bool``
        Whether ``prepare`` is wanted for such a resource at all; without it, wherever the backend has one.
    ``why_alone: str | None``
        Why no two containers may have a device of such a resource at once, as one clause that ends a line:
        then ``share`` with more than one replica is refused in the file. ``None`` where they may.
    ``uses: Collection[str]``
        What such a resource hands out beside the device itself, in the words of ``Device.unusable_for``: a
        device is Unhealthy in the resource while it is unusable for one of them. Without it, nothing.
    ``def named(self, resource: str) -> ResourceOptions``
        The value for an entry with this name, a template where it has braces: where what a container gets
        depends on the name. Called once, when the file is read. May raise :class:`OptionError`.
    """

    takes_shares: ClassVar[bool] = False
    """Whether ``allocate`` wants :attr:`AllocateRequest.shares`."""

    attributes: ClassVar[Mapping[str, Attribute]] = {}
    """Every attribute a device of this backend can have."""

    subsystems: ClassVar[Collection[str]] = ()
    """Kernel subsystems whose uevents mean "look again"; ``"*"`` for all of them."""

    discover_deadline: ClassVar[float] = 10.0
    """Seconds one ``discover`` or ``probe`` may take before the backend counts as hung."""

    def __init__(self, options: Any, context: Context) -> None:
        self.options = options
        self.context = context

    def discover(self) -> Iterable[Device]:
        """Every device that exists now, also the unhealthy ones.

        Raise when it cannot be known (the driver is busy, a library fails): the last list then stays,
        and the backend counts as degraded until a later call succeeds.
        """
        raise NotImplementedError

    def allocate(self, request: AllocateRequest) -> Edits:
        """What one container needs to use the devices of the request.

        Called for each container, again for the same devices, and must give the same answer then.
        The core checks that every required node and mount exists before it answers the kubelet.

        Raises:
            AllocationError: a device cannot be used now; its text reaches the pod's status.
        """
        raise NotImplementedError

    async def watch(self) -> AsyncIterator[Event]:
        """Yields an event whenever devices should be looked at again, for what makes no uevent.

        Such as NVML, netlink, verbs and inotify. Runs in the event loop; blocking calls go through
        :meth:`Context.run_blocking`. One that ends or raises is started again with back-off.
        """
        nothing: tuple[Event, ...] = ()
        for event in nothing:
            yield event

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """Health by device id, for checks that are too expensive for every ``discover``.

        A device that is not in the answer is healthy. Called at the start, for devices that are new, once a
        minute and when a device is in doubt, never because of an event and at least 5 s apart. It runs beside
        ``discover``, so some of the devices may be gone meanwhile.
        """
        return {}

    def prepare(self, request: AllocateRequest) -> None:
        """Does what must happen before each container start (PreStartContainer); must be idempotent.

        The options of the request are those with which the container was given its devices.
        """

    def provision(self) -> None:
        """Brings the hardware to what the options say, and does nothing where that is so.

        Called at the start, after the options have changed, when devices appear, when a container released
        something while it waits, and now and then, on a thread of its own with 60 s; also where the file has
        options of the backend and no resource of it. It never changes what a container has
        (:meth:`Context.held`).

        Raises:
            NotYet: it waits for something that is no fault.
            BackendError: what went wrong, as one sentence, which the status shows.
        """

    def links(self, a: Device, b: Device) -> int:
        """How closely two devices are joined beyond PCIe and NUMA (NVLink, XGMI).

        Larger is closer, 0 is not at all. Called after ``discover``, on a thread of its own, once for each
        pair while both stay the same, and never with more than 64 devices.
        """
        return 0

    def notice(self, event: Event) -> None:
        """Receives each event before the ``discover`` that it causes, to drop what was cached."""

    def device_info(self, device: Device, request: AllocateRequest) -> Mapping[str, object] | None:
        """What network plugins (Multus, CNI) read about a device that a container gets.

        A document of the NPWG device information specification 1.1.0, which the core writes where they read
        it; ``None`` for a device that does not concern them. Called right after ``allocate``, on the same
        thread, with the same request.
        """
        return None

    def labels(self, devices: Sequence[Device], offered: Offered) -> Mapping[str, str | int]:
        """Labels for the node, where the configuration wants them.

        The keys are names with the vendor's domain before a slash. ``devices`` are all that exist. Values are
        made legal, names must be. Called after ``discover``, on the thread of ``links``. Labels must not
        change with health, for pods are scheduled by them.
        """
        return {}

    def missing_drivers(self) -> Iterable[MissingDriver]:
        """Hardware of this kind that is present and has no driver.

        Called right after ``discover``, on its thread. What an entry of the file could want is a problem in
        status, page, log and metrics until it is no longer in the answer. Hardware that the user bound to
        another driver on purpose, such as ``vfio-pci``, does not lack one.
        """
        return ()

    def close(self) -> None:
        """Releases what the backend object keeps: processes, connections.

        Called once, after the last ``discover`` and on its thread, when another object takes over (edited
        options) or no resource needs the backend. When devhost itself ends it does not wait for this.
        """


REQUIRED_METHODS = ("discover", "allocate")
"""What every backend overrides."""

OPTIONAL_METHODS = tuple(
    name
    for name, member in vars(Backend).items()
    if inspect.isfunction(member) and not name.startswith("_") and name not in REQUIRED_METHODS
)
"""What a backend may override."""


def overrides(kind: type[Backend], method: str) -> bool:
    """Whether a class of backends has its own version of a method."""
    return getattr(kind, method) is not getattr(Backend, method)


def misspelt_methods(kind: type[Backend]) -> Mapping[str, str]:
    """Methods of a class that the core never calls, each with the one that was probably meant.

    Without this check a ``prob`` instead of ``probe`` would be silently ignored.
    """
    known = (*REQUIRED_METHODS, *OPTIONAL_METHODS)
    own = {
        name
        for base in kind.__mro__
        if base not in Backend.__mro__
        for name, member in vars(base).items()
        if inspect.isroutine(member) and not name.startswith("_") and name not in known
    }
    if not own:
        return {}
    import difflib  # 0.2 MB, only where there is something to compare

    close = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.8) for name in sorted(own)}
    return {name: found[0] for name, found in close.items() if found}
