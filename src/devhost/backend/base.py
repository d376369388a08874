"""The class that a backend derives from, and the values its methods receive."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from .frozen import frozen
from .model import NOTHING, AttributeValue, ClaimHolder, Device, Edits, Health, freeze
from .observe import ObserverHooks, hookspec

if TYPE_CHECKING:
    from fractions import Fraction  # with decimal 0.5 MB, only where a backend takes shares

API_VERSION = 1
"""Version of this API. It grows only when a backend written for the old one would break."""

P = ParamSpec("P")
T = TypeVar("T")

Offered = Mapping[str, Mapping[str, int]]
"""The number of replicas of each device, by the device's id and then by the name of the resource."""


@frozen
class ContainerRequest:
    """What is about to be given to a container, or for one request of a ResourceClaim to its containers.

    ``claim`` is ``None`` for a container that requests the resource by the device plugin API.
    """

    backend: str
    resource: str
    devices: tuple[Device, ...]
    claim: ClaimHolder | None = None


class Hooks(ObserverHooks):
    """The hooks a plugin may implement: the one that provides backends, those of observers, and two more.

    A plugin with one of the last two names the backends for which they are: ``for_backends = ("nvme",)``.
    """

    @hookspec
    def devhost_backends(self) -> Iterable[type[Backend]]:  # type: ignore[empty-body]
        """The backend classes that this plugin provides. Called once per start and per reload."""

    @hookspec
    def devhost_before_container(self, request: ContainerRequest) -> Edits | None:
        """A container is about to get devices. Returns what it gets besides; an error refuses the pod."""

    @hookspec
    def devhost_after_release(self, backend: str, devices: tuple[Device, ...]) -> None:
        """No container has the devices any longer. They are Unhealthy until this returns."""


DECIMAL_UNITS = ("", "k", "M", "G", "T", "P", "E")
BINARY_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
"""What an attribute can count in: the suffixes of Kubernetes' quantities, powers of 1000 and of 1024."""


@frozen
class Attribute:
    """Declares one attribute: its type, what it means, and an example value.

    ``type`` is ``str``, ``int``, ``bool`` or ``list`` (of strings: a condition holds when any member
    matches). ``hex`` compares a string case-insensitively, which is right for ids such as ``1A86``; with an
    example of four digits, every value has four.
    ``words`` lists all values of a string or of a list's members, if the backend's own code defines them. A
    condition that no such value meets is then a configuration error, and a device with another value is
    refused. It is empty where the kernel or a vendor may add values.
    ``begins`` is how every value begins (``/dev/``): a condition that no such value meets is an error, too.
    ``plain`` is true if every value is a plain name, such as a driver's, without ``/``, ``|``, ``{``, ``}``
    and ``\\``.
    ``also`` is the attribute with further names of the same thing, a list: a condition also holds if one of
    them matches, where ``*`` matches no ``/``.
    ``reveals`` is true for the attribute that identifies devices made of several parts: a block of ``where``
    that names it also sees the attributes that such a device inherited (:attr:`Device.inherited`).
    ``unit`` is what a number counts, as a suffix of Kubernetes' quantities: ``Mi`` for a memory in MiB. A
    capacity of a device in slices is made of it; without a unit, the number itself.

    In :attr:`Backend.attributes` a key that ends in ``*`` declares a family (``sysattr.*``).
    """

    type: type[str] | type[int] | type[bool] | type[list[str]]
    meaning: str
    example: AttributeValue
    hex: bool = False
    words: tuple[str, ...] = ()
    reveals: bool = False
    begins: str = ""
    also: str = ""
    plain: bool = False
    unit: str = ""


def declared(attributes: Mapping[str, Attribute], name: str) -> Attribute | None:
    """The declaration of attribute ``name``: its own, or that of the longest family (``ID_*``) it is in."""
    if name in attributes and not name.endswith("*"):
        return attributes[name]
    families = (f for f in attributes if f.endswith("*") and name.startswith(f[:-1]) and len(name) >= len(f))
    longest = max(families, key=len, default=None)
    return None if longest is None or name.endswith("*") else attributes[longest]


@frozen
class Conditions:
    """Declares, in ``Annotated[Where, Conditions(…)]``, an option with the syntax of a resource's ``where``.

    ``backend`` and ``attributes`` are those of the backend that has the option. The value is compiled by
    :mod:`devhost.backend.where`. An option that the file does not give has its default, such as an empty
    tuple.
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
    """A field of an ``Options`` dataclass, with the sentence that the reference and the schema show.

    An option without ``default`` is required. A list, dict or set as default is copied. If the file does not
    give an option of :attr:`Backend.ResourceOptions` that has ``implied_by``, its value is ``True`` in an
    entry whose ``where`` selects only devices whose attribute ``implied_by`` is true.
    """
    metadata = {"meaning": meaning, "example": example, "implied_by": implied_by}
    if default is MISSING:
        return field(metadata=metadata)
    if isinstance(default, (list, dict, set)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


class OptionError(ValueError):
    """Raised in ``Options.__post_init__``: ``key`` is the YAML key with the error, ``hint`` how to fix it.

    For a misspelled ``word``, ``known`` lists the valid ones: the hint is then the closest match, or the
    list.
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


@frozen
class NoOptions:
    """The options of a backend that has none."""


@frozen
class Event:
    """Something happened to a device, so it should be scanned again. An event carries no state.

    ``sys_path`` is the device's directory below ``/sys`` as the kernel names it
    (``/sys/devices/…``). If it is empty, anything may have changed (a resync, an overflow).
    """

    subsystem: str = ""
    action: str = ""
    sys_path: str = ""
    dev_node: str = ""


@frozen
class Usage:
    """How much of a device is in use; ``None`` for what the hardware does not report.

    ``busy`` is the share of time, from 0 to 1, in which it worked recently, as its driver measures it.
    ``memory_used`` is of ``memory``, both in bytes.
    """

    busy: float | None = None
    memory_used: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.busy is not None and not 0 <= self.busy <= 1:
            raise ValueError(f"busy is {self.busy}, not from 0 to 1")
        for name, bytes_ in (("memory_used", self.memory_used), ("memory", self.memory)):
            if bytes_ is not None and not 0 <= bytes_ < 1 << 64:
                raise ValueError(f"{name} is not a number of bytes from 0 to 2⁶⁴ - 1")


@frozen
class MissingDriver:
    """Hardware that is present but provides no device because its driver is missing.

    ``subject`` identifies it for an administrator of the node: ``0000:3b:00.0 (10de:2330)``. ``reason``
    describes what is missing, and in parentheses how to fix it: ``no driver is bound to it (install NVIDIA's
    driver, then run modprobe nvidia)``. ``attributes`` are those that its devices would certainly have; an
    entry whose ``where`` contradicts them does not select it. ``makes_device`` is false for what devices lack
    that exist all the same, such as a module or a sensor that an option needs: it never explains why an entry
    has no device.
    """

    subject: str
    reason: str
    attributes: Mapping[str, AttributeValue] = NOTHING
    makes_device: bool = True

    def __post_init__(self) -> None:
        freeze(self, ("attributes",))


class Context(Protocol):
    """Everything that the core provides to a backend."""

    @property
    def log(self) -> logging.Logger:
        """A logger with the backend's name."""

    @property
    def root(self) -> Path:
        """The directory used as ``/``: read ``/sys``, ``/dev``, ``/proc`` and ``/run`` below it."""

    @property
    def wanted(self) -> Collection[str]:
        """Names of the attributes that the configuration uses now. Others need not be read if that is
        expensive.

        ``"*"`` requests all of them (``devhost discover`` and ``explain`` do).
        """

    @property
    def entries(self) -> Collection[object]:
        """The values of ``ResourceOptions`` of this backend's entries in the file.

        A reload may change them while the backend object stays. A scan then follows.
        """

    def held(self) -> frozenset[str] | None:
        """What containers use now: every claim and ``part_of`` of the devices they hold, of all backends.

        The devices themselves are in it as :func:`.claim.device`, and their pods as :func:`.claim.holder`.
        ``None`` while it is unknown which container holds what: nothing that a container might use may be
        changed then. May be called from any thread.
        """

    @property
    def released(self) -> bool:
        """Whether the backend must not keep a driver in use, see :meth:`Backend.release`."""

    async def run_blocking(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking call for :meth:`Backend.watch` on a separate thread, with a deadline."""


class Consumed(NamedTuple):
    """What a claim uses of one capacity of a device, and what the device has, both in ones (bytes)."""

    amount: int
    total: int


@frozen
class AllocateRequest:
    """What one container requests, or was given: some devices of one resource.

    ``devices``
        The devices: at least one, without duplicates.
    ``options``
        The value of :attr:`Backend.ResourceOptions` of the resource's entry. The request is hashable if this
        is.
    ``resource``
        The name of the resource: ``example.com/serial``.
    ``shares``
        How much of each device the container requests, by the device's id: two of its four replicas are
        ``Fraction(2, 4)``. A device that is not in it is allocated as a whole. Set only for
        :meth:`Backend.allocate` of a backend with :attr:`Backend.takes_shares`.
    ``consumed``
        What the claim uses of each device, by the device's id and then by the name of the capacity: a
        container must not get more. Set only for an entry whose ``share.limit`` is one of the ``limits`` of
        the options.
    """

    devices: Sequence[Device]
    options: Any = NoOptions()
    resource: str = ""
    shares: Mapping[str, Fraction] = NOTHING
    consumed: Mapping[str, Mapping[str, Consumed]] = NOTHING

    def __post_init__(self) -> None:
        freeze(self, ("shares", "consumed"), ("devices",))

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
    """One kind of hardware. Subclass it, set the class attributes, and define ``discover`` and ``allocate``.

    Every other method is optional: it does nothing here, and the core only calls those that a class
    overrides. A class with a method whose name is almost one of these is refused when it is loaded.
    """

    name: ClassVar[str]
    """The backend's name in the YAML: lower-case letters, digits and hyphens."""

    api_version: ClassVar[int] = API_VERSION
    """The :data:`API_VERSION` this backend was written for."""

    Options: ClassVar[type] = NoOptions
    """A frozen dataclass; its fields, in camelCase, are the keys under ``backends.<name>``.

    A class variable ``former_keys: Mapping[str, str]``, of this or any other dataclass of options, maps keys
    of earlier versions to the error message for them. A property ``variables: Mapping[str, Collection[str]]``
    has those that ``allocate`` sets for devices made of several parts, as in :attr:`Backend.variables`, by
    the value of the attribute that identifies such a device (:attr:`Attribute.reveals`). A property
    ``provisions: bool`` is whether such options need ``provision``; by default they do if the backend has it.
    A property ``counted: Mapping[str, AttributeValue]`` has attributes of devices that exist only once a
    claim has them (``Device.divided``): an entry that may select them needs ``dra.counters``. Empty if there
    are none. A property ``words: Mapping[str, Collection[str]]`` has all values of attributes whose values
    are defined in the options: a condition in ``where`` that none of them meets is an error.
    """

    ResourceOptions: ClassVar[type] = NoOptions
    """A frozen dataclass; its fields, in camelCase, are further keys of an entry under ``resources``.

    Its value is in :attr:`AllocateRequest.options`. Editing the keys changes the resource in place: what a
    container has does not change, even when the container restarts, for as long as this process runs. A field
    must not have the name of a key that every entry has. The core uses these members of the class, if they
    exist. The last one is a method, the others are fields or properties:

    ``prepares: bool``
        Whether such a resource needs ``prepare``. By default it does if the backend has that method.
    ``why_alone: str | None``
        Why two containers cannot use a device of such a resource at the same time, as a clause at the end of
        a line. The file may then not ``share`` with more than one replica. ``None`` if they can.
    ``uses: Collection[str]``
        What such a resource provides besides the device itself, as keys of ``Device.unusable_for``. A device
        is Unhealthy in the resource while it is unusable for one of them. Empty by default.
    ``variables: Collection[str]``
        Variables that ``allocate`` sets for such a resource besides :attr:`Backend.variables`. Empty by
        default.
    ``limits: Mapping[str, Collection[str]]``
        By what ``allocate`` can limit containers to :attr:`AllocateRequest.consumed`: the value of
        ``share.limit`` in the file, with the names of the capacities. Empty by default.
    ``only_for: Mapping[str, Mapping[str, AttributeValue]]``
        For keys that are set: attributes of the only devices that they are for. An entry is refused if its
        ``where`` cannot select such a device. Empty by default.
    ``def named(self, resource: str) -> ResourceOptions``
        The value for an entry with this name (a template if it has braces), for options that depend on the
        name. Called when the file is read, and when a claim or its class sets options. May raise
        :class:`OptionError`.
    """

    takes_shares: ClassVar[bool] = False
    """Whether ``allocate`` needs :attr:`AllocateRequest.shares`."""

    attributes: ClassVar[Mapping[str, Attribute]] = {}
    """Every attribute a device of this backend can have."""

    variables: ClassVar[Collection[str]] = ()
    """Variables that ``allocate`` sets for some or all devices, with ``*`` for what varies: an entry cannot
    ``give`` them.
    """

    claim_kinds: ClassVar[Collection[str]] = ()
    """The kinds of claims that only this backend and related ones use: the first arguments of
    :func:`devhost.backend.claim.other`."""

    subsystems: ClassVar[Collection[str]] = ()
    """Kernel subsystems whose uevents cause a scan; ``"*"`` for all of them."""

    modules: ClassVar[Collection[str]] = ()
    """Kernel modules that ``release`` is about: a release ends when one of them was loaded."""

    discover_deadline: ClassVar[float] = 10.0
    """Seconds one ``discover`` or ``probe`` may take before the backend counts as hung."""

    def __init__(self, options: Any, context: Context) -> None:
        self.options = options
        self.context = context

    def discover(self) -> Iterable[Device]:
        """Every device that exists now, including unhealthy ones.

        Raise an exception if that cannot be determined (the driver is busy, a library fails). The last list
        then stays, and the backend is degraded until a later call succeeds.
        """
        raise NotImplementedError

    def allocate(self, request: AllocateRequest) -> Edits:
        """What one container needs to use the devices of the request.

        Called for each container. Called again for the same devices, it must return the same.
        The core checks that every required node and mount exists before it answers the kubelet.

        Raises:
            AllocationError: a device cannot be used now; the text appears in the pod's status.
        """
        raise NotImplementedError

    async def watch(self) -> AsyncIterator[Event]:
        """Yields an event whenever devices should be scanned because of a change that causes no uevent.

        Sources are NVML, netlink, verbs and inotify, for example. It runs in the event loop; make blocking
        calls through :meth:`Context.run_blocking`. If it returns or raises, it is called again with back-off.
        """
        nothing: tuple[Event, ...] = ()
        for event in nothing:
            yield event

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """Health by device id, from checks that are too expensive for every ``discover``.

        A device that is not in the result is healthy. Called at the start, for new devices, once a minute,
        and when the state of a device is in doubt; never because of an event, and at least 5 s apart. It runs
        concurrently with ``discover``, so some of the devices may have disappeared by then.
        """
        return {}

    def usage(self, devices: Sequence[Device]) -> Mapping[str, Usage]:
        """How much of each device is in use now, by its id; devices of which nothing is known are left out.

        Called for a scrape of the metrics with ``devhost run --use-metrics``, at most every 10 s, on a
        separate thread and with a deadline of 5 s. An exception means that nothing is known now.
        """
        return {}

    def prepare(self, request: AllocateRequest) -> None:
        """Prepares the devices before each start of the container (PreStartContainer); must be idempotent.

        The options of the request are those with which the devices were allocated to the container.
        """

    def provision(self) -> None:
        """Configures the hardware as the options require; does nothing if it is configured already.

        Called at the start, after the options have changed, when devices appear, when a container releases
        something while this waits, and at intervals; on a separate thread, with a deadline of 60 s. It is
        also called if the file has options of the backend but no resource of it. It must not change what a
        container uses (:meth:`Context.held`).

        Raises:
            NotYet: it has to wait for something, which is not a failure.
            BackendError: it failed; the status shows the text, one sentence.

        :mod:`devhost.backend.provision` has the rules for devices that containers may hold.
        """

    def links(self, a: Device, b: Device) -> int:
        """How closely two devices are connected beyond PCIe and NUMA (NVLink, XGMI).

        A larger number means closer; 0 means not connected. Called after ``discover``, on a separate thread,
        once for each pair until one of the two changes, and not at all with more than 64 devices.
        """
        return 0

    def notice(self, event: Event) -> None:
        """Receives each event before the ``discover`` that it causes, to invalidate caches."""

    def device_info(self, device: Device, request: AllocateRequest) -> Mapping[str, object] | None:
        """What network plugins (Multus, CNI) read about a device that a container gets.

        A document of the NPWG device information specification 1.1.0, which the core writes to the file that
        they read; ``None`` for a device without one. Called right after ``allocate``, on the same thread,
        with the same request.
        """
        return None

    def labels(self, devices: Sequence[Device], offered: Offered) -> Mapping[str, str | int]:
        """Labels for the node, if the configuration enables them.

        Keys are valid label names with the vendor's domain before a slash. The core makes the values valid.
        ``devices`` are all that exist. Called after ``discover``, on the thread of ``links``. Labels must not
        depend on health, because pods are scheduled by them.
        """
        return {}

    def missing_drivers(self) -> Iterable[MissingDriver]:
        """Hardware of this kind that is present and has no driver.

        Called right after ``discover``, on its thread. What an entry of the file could select is shown as a
        problem in status, page, log and metrics until it is no longer in the result. Hardware that the user
        bound to another driver on purpose, such as ``vfio-pci``, is not missing one.
        """
        return ()

    def release(self) -> None:
        """Closes everything that keeps a driver in use, and returns when it is closed.

        That is open device nodes, sessions of a vendor's library, and processes with these. Called for
        ``devhost release``, so that the driver can be unloaded or a device reset, on the thread of
        ``discover`` and with a deadline of 20 s. :attr:`Context.released` is true from before the call until
        the release ends; nothing may be opened again meanwhile. The devices are Unhealthy then, and ``probe``
        is not called. Afterwards ``discover`` is called as usual.

        Raises:
            BackendError: something cannot be closed, and why.
        """

    def close(self) -> None:
        """Releases what the backend object keeps open, such as processes and connections.

        Called once, after the last ``discover`` and on its thread, when another object replaces this one
        (edited options) or no resource needs the backend any longer. devhost does not wait for it when it
        stops.
        """


REQUIRED_METHODS = ("discover", "allocate")
"""The methods that every backend must define."""

OPTIONAL_METHODS = tuple(
    name
    for name, member in vars(Backend).items()
    if inspect.isfunction(member) and not name.startswith("_") and name not in REQUIRED_METHODS
)
"""The methods that a backend may define."""


def overrides(kind: type[Backend], method: str) -> bool:
    """Whether a class of backends has its own version of a method."""
    return getattr(kind, method) is not getattr(Backend, method)


def misspelt_methods(kind: type[Backend]) -> Mapping[str, str]:
    """Methods of a class that the core never calls, each with the one that was probably intended.

    Without this check, a method ``prob`` instead of ``probe`` would be silently ignored.
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
