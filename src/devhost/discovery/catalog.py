"""Finds the installed backends and observers, and the plugins that are refused, with the reasons.

Plugins are found in two ways and treated alike: packages with an entry point in the group ``devhost``, and
``.py`` files (drop-ins) in the directories of ``backendPaths``. Importing a plugin runs third-party code, so
an exception of a plugin only makes it a :class:`Refusal`. A drop-in that users other than root and this
process's user can change is not imported at all (:mod:`devhost.backend.trusted`).

Which of the backends have to run, and with what, is :meth:`Catalog.needed`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import field, fields, is_dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pluggy

from devhost.backend import API_VERSION, Attribute, Backend, NoOptions, claim, trusted
from devhost.backend.base import (
    BINARY_UNITS,
    DECIMAL_UNITS,
    REQUIRED_METHODS,
    Hooks,
    misspelt_methods,
    overrides,
)
from devhost.backend.errors import excerpt
from devhost.backend.frozen import frozen
from devhost.backend.observe import ObserverHooks
from devhost.missing import missing_package
from devhost.planning.settings import ResourceSettings, Settings

from .entry_points import EntryPoint, entry_points

GROUP = "devhost"
"""The entry point group, which is also pluggy's project name."""

OFFICIAL = {
    "fpga": "devhost-fpga",
    "gpu": "devhost-gpu",
    "neuron": "devhost-neuron",
    "rdma": "devhost-rdma",
    "sriov": "devhost-sriov",
    "udev": "devhost-udev",
}
"""Backends of this project, each with its package."""

WRITING = "docs/backends/writing.md"
"""Where the methods of a backend are described."""

BACKENDS = "devhost_backends"
"""The hook that provides backends."""

BEFORE_CONTAINER, AFTER_RELEASE = "devhost_before_container", "devhost_after_release"
"""The hooks of :mod:`.handover`; all others are hooks of observers."""

_HOOKS: Mapping[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(hook).parameters)[1:]
    for kind in (Hooks, ObserverHooks)
    for name, hook in vars(kind).items()
    if not name.startswith("_")
}
"""The arguments of each hook."""

ENTRY_KEYS = frozenset(
    re.sub("_(.)", lambda found: found[1].upper(), one.name) for one in fields(ResourceSettings)
) - {"index", "options", "driver"}
"""The keys that every entry under ``resources`` has; no option of a backend may have the name of one."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_./-]+)?(\.?\*)?")


@frozen
class Installed:
    """A backend that can be used. ``origin`` is the name of a package or the path of a drop-in."""

    backend: type[Backend]
    origin: str
    version: str
    hooks: tuple[str, ...]


@frozen
class InstalledObserver:
    """A plugin with hooks for events; ``name`` is unique, ``hooks`` are those it implements.

    ``backends`` are those for which it has hooks of :mod:`.handover`.
    """

    name: str
    origin: str
    version: str
    hooks: tuple[str, ...]
    plugin: object
    caller: pluggy.HookRelay
    backends: tuple[str, ...] = ()

    def call(self, hook: str, **arguments: object) -> Any:
        """Calls a hook of this plugin alone, with those arguments that it takes. May raise anything."""
        return getattr(self.caller, hook)(**arguments)


@frozen
class Refusal:
    """A plugin, or one backend of a plugin, that cannot be used.

    ``backend`` is the name of the backend, empty if it is unknown.
    """

    origin: str
    version: str
    reason: str
    backend: str = ""


@frozen
class Needed:
    """A backend that has to run, and what the configuration wants of it.

    ``options`` is the value of its ``Options``, ``provisions`` whether it configures hardware with them.
    ``wanted`` is every attribute name that its entries use, ``entries`` are their ``ResourceOptions``, and
    ``given`` the host paths that their ``give`` names.
    """

    backend: type[Backend]
    options: object = None
    provisions: bool = False
    wanted: frozenset[str] = frozenset()
    entries: tuple[object, ...] = ()
    given: frozenset[str] = frozenset()


@frozen
class Catalog:
    """The backends of this installation by name, its observers, and everything that was refused."""

    installed: Mapping[str, Installed] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
    observers: tuple[InstalledObserver, ...] = ()

    def get(self, name: str) -> type[Backend] | None:
        """The backend class called ``name``, if it is installed and valid."""
        found = self.installed.get(name)
        return found.backend if found else None

    def needed(self, settings: Settings) -> Mapping[str, Needed]:
        """The backends that resources name, and those with options that configure hardware.

        Virtual functions may be for other software on the node, and devhost removes those that it created
        even after the last resource was removed. So a backend runs as soon as it has options that need
        ``provision``.
        """
        named = settings.backend_names()
        found = {}
        for name in dict.fromkeys((*named, *settings.backends)):
            backend, options = self.get(name), settings.backends.get(name)
            if backend is None:
                continue  # config.load refuses a file that needs a missing backend
            provisions = overrides(backend, "provision") and bool(getattr(options, "provisions", True))
            if name in named or provisions:
                entries = settings.resource_options(name)
                found[name] = Needed(
                    backend, options, provisions, settings.wanted(name), entries, settings.given(name)
                )
        return found

    def to_install(self, name: str) -> str:
        """How to install a backend of this project; empty if it is installed, refused, or unknown."""
        refused = any(name in (one.backend, Path(one.origin).stem, one.origin) for one in self.refused)
        if name in self.installed or name not in OFFICIAL or refused:
            return ""
        return f"install the package {OFFICIAL[name]}"

    def why_missing(self, name: str) -> str:
        """Why a backend is not in the catalog, or how to install it; empty if unknown."""
        for refusal in self.refused:
            if name in (refusal.backend, Path(refusal.origin).stem, refusal.origin):
                return f"plugin {refusal.origin} was refused: {refusal.reason}"
        return self.to_install(name)

    def suspect(self) -> str:
        """The refused plugin that may have a backend that is not in the catalog; empty if none was refused.

        The name of a third-party plugin may differ from those of its backends, and a directory may have any
        backend.
        """
        for refusal in self.refused:
            if not refusal.backend or refusal.origin.endswith(".py"):
                return f"perhaps it is in {refusal.origin}, which was refused: {refusal.reason}"
        return ""


def load(
    paths: Sequence[Path] = (),
    wanted: Collection[str] | None = None,
    *,
    points: Collection[EntryPoint] | None = None,
    read: Callable[[Path], bytes] = trusted.read_bytes,
) -> Catalog:
    """Imports plugins and returns what they provide.

    A plugin stays in memory for as long as the process lives, so a plugin that provides no backend of
    ``wanted`` is not imported. That is only known of this project's own packages: others may provide
    anything. Every plugin is imported if one of these backends is not found, and for ``None``. What plugins
    print goes to standard error.
    """
    with redirect_stdout(sys.stderr):
        return _load(paths, wanted, points, _Builder(read))


def _load(
    paths: Sequence[Path],
    wanted: Collection[str] | None,
    points: Collection[EntryPoint] | None,
    builder: _Builder,
) -> Catalog:
    found = entry_points(group=GROUP) if points is None else points
    points = sorted(found, key=lambda point: (point.name, point.value))
    skipped = [point for point in points if wanted is not None and _provides_unwanted(point, wanted)]
    for point in points:
        if point not in skipped:
            builder.add_distribution(point)
    for directory in paths:
        builder.add_directory(directory)
    if wanted is not None and not builder.installed.keys() >= set(wanted):
        for point in skipped:
            builder.add_distribution(point)
    return Catalog(builder.installed, tuple(builder.refused), tuple(builder.observers.values()))


def _provides_unwanted(point: EntryPoint, wanted: Collection[str]) -> bool:
    """Whether this is a package of the project for a backend that is not wanted."""
    return point.name not in wanted and OFFICIAL.get(point.name) == point.dist.name


class _Builder:
    def __init__(self, read: Callable[[Path], bytes]) -> None:
        self._read = read
        self.installed: dict[str, Installed] = {}
        self.refused: list[Refusal] = []
        self.observers: dict[str, InstalledObserver] = {}
        self._plugins: list[object] = []

    def add_distribution(self, point: EntryPoint) -> None:
        origin, version = point.dist.name, point.dist.version
        try:
            plugin = point.load()
        except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
            self._refuse(origin, version, error, backend=point.name)
            return
        self._register(plugin, origin, version, point.name)

    def add_directory(self, directory: Path) -> None:
        try:
            names = trusted.names(directory)
        except (trusted.Untrusted, OSError) as error:
            self.refused.append(Refusal(str(directory), "", _unusable("directory", error)))
            return
        for name in sorted(names):
            if not name.endswith(".py") or name.startswith(("_", ".")):
                continue
            file = directory / name
            try:
                text = self._read(file)
            except (trusted.Untrusted, OSError) as error:
                self.refused.append(Refusal(str(file), "", _unusable("file", error), file.stem))
                continue
            try:
                plugin = _import_file(file, text)
            except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
                self._refuse(str(file), "", error, backend=file.stem)
                continue
            self._register(plugin, str(file), str(getattr(plugin, "__version__", "")), file.stem)

    def _refuse(self, origin: str, version: str, error: BaseException, backend: str = "") -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        place = f"{origin}:{line}: " if (line := _line(error, origin)) else ""
        own = error.msg if place and isinstance(error, SyntaxError) else str(error)
        text = f"{type(error).__name__}: {excerpt(own) or 'no message'}"
        if missing := missing_package(error):
            text = excerpt(f"{missing[0]} ({missing[1]})")
        self.refused.append(Refusal(origin, version, f"{place}{text}", backend))

    def _register(self, plugin: object, origin: str, version: str, name: str) -> None:
        try:
            registry = _Registry(plugin)
            flaw = "; ".join(_hook_flaws(plugin, registry.found))
            if any(plugin is known for known in self._plugins):
                flaw = "it is registered twice"
            if flaw:
                self.refused.append(Refusal(origin, version, flaw))
                return
            registry.add_hookspecs(Hooks)
            registry.register(plugin)
            callers = registry.get_hookcallers(plugin) or ()
            hooks = tuple(caller.name for caller in callers if caller.name in _HOOKS)
            if not hooks:
                reason = f"it does not implement {BACKENDS}, nor any hook of an observer"
                self.refused.append(Refusal(origin, version, f"{reason} (is @hookimpl missing?)"))
                return
            served = _for_backends(plugin, hooks)
            batches = registry.hook.devhost_backends()
            if single := [one for one in batches if isinstance(one, type)]:
                reason = f"{BACKENDS} returned a class, not a list of classes"
                self.refused.append(
                    Refusal(origin, version, f"{reason} (write return [{single[0].__name__}])")
                )
                return
            backends = [one for batch in batches for one in batch]
        except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
            self._refuse(origin, version, error)
            return
        self._plugins.append(plugin)
        if observed := tuple(sorted(set(hooks) - {BACKENDS})):
            unique = next(one for one in (name, origin, f"{origin}:{name}") if one not in self.observers)
            observer = InstalledObserver(unique, origin, version, observed, plugin, registry.hook, served)
            self.observers[unique] = observer
        elif not backends:
            self.refused.append(Refusal(origin, version, "devhost_backends returned no backend"))
        for backend in backends:
            self._admit(backend, origin, version, hooks)

    def _admit(self, backend: object, origin: str, version: str, hooks: tuple[str, ...]) -> None:
        name = getattr(backend, "name", "")
        name = name if isinstance(name, str) else ""
        try:
            reason = "; ".join(flaws(backend))
        except Exception as error:  # noqa: BLE001 - third-party code may raise on any access
            self._refuse(origin, version, error, backend=name)
            return
        if not reason and name in self.installed:
            reason = f"backend {name!r} is already provided by {self.installed[name].origin}"
        if reason:
            self.refused.append(Refusal(origin, version, reason, name))
        elif isinstance(backend, type) and issubclass(backend, Backend):
            self.installed[name] = Installed(backend, origin, version, hooks)


class _Registry(pluggy.PluginManager):
    """A registry for one plugin, so that none can affect the hooks of another.

    pluggy takes long to search a plugin, which is done once, and to prepare a hook, which is done for those
    that the plugin has. ``found`` has the names in the plugin that are marked as hooks.
    """

    def __init__(self, plugin: object) -> None:
        super().__init__(GROUP)
        self.found = {
            name: found
            for name in dir(plugin)
            if (found := pluggy.PluginManager.parse_hookimpl_opts(self, plugin, name)) is not None
        }

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        return self.found.get(name)

    def parse_hookspec_opts(self, kind: ModuleType | type, name: str) -> pluggy.HookspecOpts | None:
        wanted = {BACKENDS, *(found.get("specname") or own for own, found in self.found.items())}
        return super().parse_hookspec_opts(kind, name) if name in wanted else None


def _line(error: BaseException, file: str) -> int:
    """The line of a drop-in that raised an exception; 0 if no line of that file did."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 0 for frame in reversed(frames) if frame.filename == file), 0)


def _unusable(what: str, error: trusted.Untrusted | OSError) -> str:
    """Why a directory of ``backendPaths``, or a file in one, cannot be used."""
    if isinstance(error, trusted.Untrusted):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"the {what} does not exist"
    if isinstance(error, NotADirectoryError):
        return "it is not a directory"
    return f"it cannot be read: {error.strerror or error}"


def _hook_flaws(plugin: object, hooks: Mapping[str, pluggy.HookimplOpts]) -> Iterator[str]:
    """Everything that prevents the hooks of a plugin from being called, each as one clause.

    pluggy would detect the first two as well, but its messages do not explain how to fix them.
    """
    for name, found in hooks.items():
        hook = found.get("specname") or name
        if hook not in _HOOKS:
            if not found.get("optionalhook"):
                import difflib  # 0.2 MB, only after a misspelling

                close = difflib.get_close_matches(hook, _HOOKS, n=1)
                yield f"unknown hook {hook}" + (f" (did you mean {close[0]}?)" if close else "")
            continue
        function = getattr(plugin, name)
        if isinstance(plugin, type) and inspect.isfunction(inspect.getattr_static(plugin, name)):
            yield f"{hook} is a method of a class: register an object of {plugin.__name__}, not the class"
            continue
        if odd := [one for one in _demanded(function) if one not in _HOOKS[hook]]:
            known = ", ".join(_HOOKS[hook]) or "none"
            yield f"{hook} has the unknown argument {', '.join(odd)} (valid arguments: {known})"
        if lost := [one for one in _HOOKS[hook] if one in _optional(function)]:
            yield f"{hook} has a default for {', '.join(lost)}, which is never passed then: remove it"
        if hook == BACKENDS or found.get("wrapper") or found.get("hookwrapper"):
            continue
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            yield f"{hook} must be a plain function (it may block: it runs on its own thread)"


def _for_backends(plugin: object, hooks: Collection[str]) -> tuple[str, ...]:
    """The backends whose devices the hooks of :mod:`.handover` are for. Raises ``TypeError`` if none is."""
    handover = [hook for hook in (BEFORE_CONTAINER, AFTER_RELEASE) if hook in hooks]
    if not handover:
        return ()
    found = getattr(plugin, "for_backends", ())
    if isinstance(found, list | tuple) and found and all(isinstance(name, str) for name in found):
        return tuple(found)
    raise TypeError(f'{handover[0]} needs for_backends, the backends that it is for: for_backends = ("gpu",)')


def _demanded(function: object) -> Iterator[str]:
    """The arguments without which a function cannot be called."""
    for one in inspect.signature(function).parameters.values():  # type: ignore[arg-type]  # it is callable
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            yield one.name


def _optional(function: object) -> Iterator[str]:
    """The arguments that have a default; pluggy passes none of them."""
    for one in inspect.signature(function).parameters.values():  # type: ignore[arg-type]  # it is callable
        if one.default is not one.empty:
            yield one.name


class _Uncached(SourceFileLoader):
    """Compiles a drop-in each time: cached byte code would hide an edit within the same second.

    The code is the text that was read when the file was checked, even if the file has changed since.
    """

    def __init__(self, fullname: str, path: str, text: bytes) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_source(self, fullname: str) -> str:
        return decode_source(self._text)

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._text, self.path)
        return code


def _import_file(file: Path, text: bytes) -> ModuleType:
    """Imports a drop-in with the content ``text``, under a name made from its path and content.

    So two directories may have files of the same name, a reload of an unchanged file gets the same classes,
    and an edited file becomes a new module.
    """
    digest = hashlib.sha256(bytes(file.resolve()) + b"\0" + text).hexdigest()[:16]
    name = f"devhost_dropin_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file, loader=_Uncached(name, str(file), text))
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up a class's module here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def flaws(backend: Any) -> Iterable[str]:
    """Everything that prevents a class from being a backend, each as one clause; nothing if it is valid."""
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        yield f"{backend!r} is not a subclass of devhost.backend.Backend"
        return
    name = getattr(backend, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"name {name!r} must be lower-case letters, digits and hyphens, at most 32"
    if backend.api_version != API_VERSION:
        yield f"it was written for API version {backend.api_version}, this devhost has {API_VERSION}"
    misspelt = misspelt_methods(backend)
    for wrong, meant in misspelt.items():
        yield f"it defines {wrong}(), which is never called: did you mean {meant}()?"
    yield from unread_settings(backend)
    for method in REQUIRED_METHODS:
        if not overrides(backend, method) and method not in misspelt.values():
            yield f"it does not define {method}()"
    for method in ("allocate", "prepare"):
        if not _takes(backend, method, None) or _takes_devices(backend, method):
            yield f"{method}() takes one request: def {method}(self, request), see {WRITING}"
    if not _takes(backend, "device_info", None, None):
        wanted = "def device_info(self, device, request)"
        yield f"device_info() takes a device and the request: {wanted}, see {WRITING}"
    if not (isinstance(backend.Options, type) and is_dataclass(backend.Options)):
        yield "Options is not a dataclass"
    if backend.ResourceOptions is not NoOptions:
        yield from _resource_flaws(backend)
    for several in ("claim_kinds", "modules", "subsystems", "variables"):
        found: Any = getattr(backend, several)
        if isinstance(found, str):
            yield f"{several} is one string; write a tuple of strings"
        elif not isinstance(found, Collection) or not all(isinstance(one, str) for one in found):
            yield f"{several} is not a tuple of strings"
        elif several == "claim_kinds" and (odd := [kind for kind in found if not claim.is_kind(kind)]):
            yield f"claim_kinds has {odd[0]!r}: a new kind has lower-case letters, digits and hyphens"
    deadline: Any = backend.discover_deadline
    if type(deadline) not in (int, float) or not 0 < deadline < math.inf:
        yield f"discover_deadline is {deadline!r}, not a number of seconds above zero"
    shares: Any = backend.takes_shares
    if not isinstance(shares, bool):
        yield f"takes_shares is {shares!r}, not True or False"
    declared: Any = backend.attributes
    if not isinstance(declared, Mapping):
        yield "attributes is not a mapping of name to Attribute"
        return
    for key, attribute in declared.items():
        if not isinstance(attribute, Attribute):
            yield f"attribute {key!r} is not declared with Attribute(type, meaning, example)"
        elif attribute.type not in (str, int, bool, list):
            yield f"attribute {key!r} has type {attribute.type!r}; it must be str, int, bool or list"
        elif flaw := _type_flaw(attribute) or _words_flaw(attribute) or _unit_flaw(attribute):
            yield f"attribute {key!r} {flaw}"
        elif not isinstance(key, str) or not _ATTRIBUTE.fullmatch(key) or key == "not":
            yield f"attribute name {key!r} is not usable in YAML"


def _resource_flaws(backend: type[Backend]) -> Iterator[str]:
    """What is wrong with the options that a backend adds to entries of resources."""
    wanted: Any = backend.ResourceOptions
    if not (isinstance(wanted, type) and is_dataclass(wanted)):
        yield "ResourceOptions is not a dataclass"
        return
    taken = {key.lower(): key for key in ENTRY_KEYS}
    for one in fields(wanted):
        if key := taken.get(one.name.replace("_", "").lower()):
            yield f"ResourceOptions has the field {one.name}, and {key} is a key of every entry"


def _takes(backend: type[Backend], method: str, *arguments: object) -> bool:
    """Whether a method can be called with this number of arguments; true if that cannot be determined."""
    bare = isinstance(inspect.getattr_static(backend, method), (staticmethod, classmethod))
    try:
        inspect.signature(getattr(backend, method)).bind(*([] if bare else [backend]), *arguments)
    except TypeError:
        return False
    except ValueError:  # one that is not written in Python
        return True
    return True


def _takes_devices(backend: type[Backend], method: str) -> bool:
    """Whether a method expects devices in place of a request: it would fail only when a pod needs it."""
    try:
        names = list(inspect.signature(getattr(backend, method)).parameters)
    except (TypeError, ValueError):  # one that is not written in Python
        return False
    return "devices" in names[:2]


def _type_flaw(attribute: Attribute) -> str:
    for kind, names in ((str, ("meaning", "begins", "also", "unit")), (bool, ("hex", "reveals", "plain"))):
        if odd := [name for name in names if not isinstance(getattr(attribute, name), kind)]:
            return f"has {odd[0]} {getattr(attribute, odd[0])!r}, which is not a {kind.__name__}"
    return ""


def _words_flaw(attribute: Attribute) -> str:
    words: Any = attribute.words
    if not isinstance(words, tuple) or not all(isinstance(word, str) and word for word in words):
        return "has words that are not a tuple of non-empty strings"
    if words and (attribute.type not in (str, list) or attribute.hex):
        return "has words, which only strings and lists can have, and not with hex"
    return ""


def _unit_flaw(attribute: Attribute) -> str:
    units = (*DECIMAL_UNITS, *BINARY_UNITS) if attribute.type is int else ("",)
    return "" if attribute.unit in units else f"has unit {attribute.unit!r}: a number may have one such as Mi"


_READ = tuple(name for name in Backend.__annotations__ if not name.startswith("_"))
"""The class attributes that devhost reads."""

_PLAIN = (bool, int, float)

_ADVICE = {
    "deadline|timeout": "did you mean discover_deadline?",
    "interval|period|poll|resync": "devhost scans after each event that watch() yields",
}
"""What to do instead, by words in the name."""


def unread_settings(kind: type[Backend]) -> Iterator[str]:
    """The settings of a class that nothing reads, each as one clause with the right name where there is one.

    Those are numbers and switches, and attributes of any type whose name is almost one that devhost reads.
    What the code of the backend mentions again counts as read, and so does everything if there is no source.
    """
    for base in kind.__mro__:
        if base in Backend.__mro__:
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name.isupper() or name in _READ or hasattr(Backend, name):
                continue
            if (
                callable(value)
                or inspect.isdatadescriptor(value)
                or isinstance(value, classmethod | staticmethod)
            ):
                continue
            meant = _meant(name)
            if (meant or isinstance(value, _PLAIN)) and not _is_read(base, name):
                yield f"it sets {name}, which nothing reads: {_advice(name, meant)}"


def _advice(name: str, meant: str) -> str:
    if meant:
        return f"did you mean {meant}?"
    advice = (text for words, text in _ADVICE.items() if re.search(words, name))
    return next(advice, f"devhost reads {', '.join(sorted(_READ))}")


def _meant(name: str) -> str:
    """The attribute that was probably meant; empty if none is similar."""
    import difflib  # 0.2 MB, only where there is something to compare

    same = {known.lower().replace("_", ""): known for known in _READ}
    close = difflib.get_close_matches(name.lower().replace("_", ""), same, n=1, cutoff=0.8)
    return same[close[0]] if close else ""


def _is_read(base: type, name: str) -> bool:
    """Whether the package that defines a class mentions a name more than once; true if that is not known."""
    package = base.__module__.partition(".")[0]
    mentioned = 0
    for path, module in list(sys.modules.items()):
        if path == package or path.startswith(f"{package}."):
            try:
                text = module.__spec__.loader.get_source(path)  # type: ignore[union-attr]
            except Exception:  # noqa: BLE001 - a third-party loader may raise anything
                text = None
            mentioned += len(re.findall(rf"\b{name}\b", text or ""))
    return mentioned != 1
