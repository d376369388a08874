"""Which backends are installed, from where, and which plugins were refused and why.

Plugins are found in two ways and treated alike: distributions with an entry point in group
``devhost``, and ``.py`` files in the directories of ``backendPaths``. Importing a plugin runs a
stranger's code, so each one is contained: what it raises makes it a :class:`Refusal`, no more.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pluggy

from .backend import API_VERSION, Attribute, Backend, Hooks

GROUP = "devhost"
"""The entry point group, which is also pluggy's project name."""

OFFICIAL = {
    "fpga": "devhost-fpga",
    "gpu": "devhost-gpu",
    "rdma": "devhost-rdma",
    "sriov": "devhost-sriov",
    "udev": "devhost-udev",
}
"""Backends of this project and the package that brings each."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_./-]+)?(\.?\*)?")


@dataclass(frozen=True, slots=True)
class Installed:
    """A backend ready for use. ``origin`` is a distribution's name or a drop-in file's path."""

    backend: type[Backend]
    origin: str
    version: str
    hooks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A plugin, or one backend of a plugin, that cannot be used.

    ``backend`` is the name it would have had, empty where it never got that far.
    """

    origin: str
    version: str
    reason: str
    backend: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The backends of this installation by name, and everything that was refused."""

    installed: Mapping[str, Installed] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()

    def get(self, name: str) -> type[Backend] | None:
        """The backend class called ``name``, if it is installed and sound."""
        found = self.installed.get(name)
        return found.backend if found else None

    def why_missing(self, name: str) -> str:
        """What a user should do about a backend that is not in the catalog; empty if unknown."""
        for refusal in self.refused:
            if name in (refusal.backend, Path(refusal.origin).stem, refusal.origin):
                return f"plugin {refusal.origin} was refused: {refusal.reason}"
        if name in OFFICIAL:
            return f"install the package {OFFICIAL[name]}"
        return ""


def load(paths: Sequence[Path] = ()) -> Catalog:
    """Imports every plugin there is and looks at what it brings.

    Args:
        paths: directories whose ``*.py`` files are plugins too (``backendPaths``).
    """
    builder = _Builder()
    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        builder.add_distribution(point)
    for directory in paths:
        builder.add_directory(directory)
    return Catalog(builder.installed, tuple(builder.refused))


class _Builder:
    def __init__(self) -> None:
        self.installed: dict[str, Installed] = {}
        self.refused: list[Refusal] = []
        self._pluggy = pluggy.PluginManager(GROUP)
        self._pluggy.add_hookspecs(Hooks)

    def add_distribution(self, point: EntryPoint) -> None:
        origin, version = (point.dist.name, point.dist.version) if point.dist else (point.name, "")
        try:
            plugin = point.load()
        except BaseException as error:  # noqa: BLE001 - a stranger's module may raise anything
            self._refuse(origin, version, error, backend=point.name)
            return
        self._register(plugin, origin, version)

    def add_directory(self, directory: Path) -> None:
        if not directory.is_dir():
            self.refused.append(Refusal(str(directory), "", "the directory does not exist"))
            return
        for file in sorted(directory.glob("*.py")):
            if file.name.startswith(("_", ".")):
                continue
            try:
                plugin = _import_file(file)
            except BaseException as error:  # noqa: BLE001 - a stranger's module may raise anything
                self._refuse(str(file), "", error, backend=file.stem)
                continue
            self._register(plugin, str(file), str(getattr(plugin, "__version__", "")))

    def _refuse(self, origin: str, version: str, error: BaseException, backend: str = "") -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        text = " ".join(str(error).split()) or "no message"
        self.refused.append(Refusal(origin, version, f"{type(error).__name__}: {text}", backend))

    def _register(self, plugin: object, origin: str, version: str) -> None:
        try:
            self._pluggy.register(plugin, name=f"{origin}:{id(plugin)}")
            self._pluggy.check_pending()
            hooks = tuple(caller.name for caller in self._pluggy.get_hookcallers(plugin) or ())
            if "devhost_backends" not in hooks:
                raise pluggy.PluginValidationError(plugin, "it does not implement devhost_backends")
            others = [other for other in self._pluggy.get_plugins() if other is not plugin]
            hook = self._pluggy.subset_hook_caller("devhost_backends", others)
            backends = [backend for batch in hook() for backend in batch]
        except BaseException as error:  # noqa: BLE001 - a stranger's hook may raise anything
            self._refuse(origin, version, error)
            if self._pluggy.is_registered(plugin):
                self._pluggy.unregister(plugin)
            return
        if not backends:
            self.refused.append(Refusal(origin, version, "devhost_backends returned no backend"))
        for backend in backends:
            self._admit(backend, origin, version, hooks)

    def _admit(self, backend: object, origin: str, version: str, hooks: tuple[str, ...]) -> None:
        name = getattr(backend, "name", "")
        name = name if isinstance(name, str) else ""
        try:
            reason = "; ".join(flaws(backend))
        except Exception as error:  # noqa: BLE001 - a stranger's class may raise on any look at it
            self._refuse(origin, version, error, backend=name)
            return
        if not reason and name in self.installed:
            reason = f"backend {name!r} is already provided by {self.installed[name].origin}"
        if reason:
            self.refused.append(Refusal(origin, version, reason, name))
        elif isinstance(backend, type) and issubclass(backend, Backend):
            self.installed[name] = Installed(backend, origin, version, hooks)


class _Uncached(SourceFileLoader):
    """Compiles a drop-in each time: byte code beside it would hide an edit made within one second."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _import_file(file: Path) -> ModuleType:
    """Imports a drop-in under a name made from its path and content.

    Two directories may so hold the same file name, a reload that finds the file unchanged gets the
    same classes, and one that was edited is a new module.
    """
    digest = hashlib.sha256(bytes(file.resolve()) + b"\0" + file.read_bytes()).hexdigest()[:16]
    name = f"devhost_dropin_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file, loader=_Uncached(name, str(file)))
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look a class's module up here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def flaws(backend: Any) -> Iterable[str]:
    """Everything that keeps a class from being a backend, each in one clause; nothing if it is sound."""
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        yield f"{backend!r} is not a subclass of devhost.backend.Backend"
        return
    name = getattr(backend, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"name {name!r} must be lower-case letters, digits and hyphens, at most 32"
    if backend.api_version != API_VERSION:
        yield f"it was written for API version {backend.api_version}, this devhost has {API_VERSION}"
    for method in ("discover", "allocate"):
        if getattr(backend, method) is getattr(Backend, method):
            yield f"it does not define {method}()"
    if not (isinstance(backend.Options, type) and is_dataclass(backend.Options)):
        yield "Options is not a dataclass"
    subsystems: Any = backend.subsystems
    if isinstance(subsystems, str):
        yield "subsystems is one string; write a tuple of strings"
    elif not isinstance(subsystems, Collection) or not all(isinstance(one, str) for one in subsystems):
        yield "subsystems is not a tuple of strings"
    declared: Any = backend.attributes
    if not isinstance(declared, Mapping):
        yield "attributes is not a mapping of name to Attribute"
        return
    for key, attribute in declared.items():
        if not isinstance(attribute, Attribute):
            yield f"attribute {key!r} is not declared with Attribute(type, meaning, example)"
        elif attribute.type not in (str, int, bool, list):
            yield f"attribute {key!r} has type {attribute.type!r}; it must be str, int, bool or list"
        elif not isinstance(key, str) or not _ATTRIBUTE.fullmatch(key) or key == "not":
            yield f"attribute name {key!r} is not usable in YAML"
