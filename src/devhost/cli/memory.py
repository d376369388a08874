"""Keeps the resident memory of a long-running process small, and its start short."""

from __future__ import annotations

import ctypes
import gc
import importlib
import re
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from threading import Lock
from types import ModuleType
from typing import Any

_M_ARENA_MAX = -8
"""Parameter of ``mallopt``: the maximum number of heaps (malloc.h of glibc)."""

_OPENSSL = ("ssl", "_hashlib")
"""The modules that load OpenSSL: asyncio imports the first, hashlib the second, and both work without."""

_RARE = (
    *(
        "ast",
        "base64",
        "calendar",
        "ipaddress",
        "locale",
        "pkgutil",
        "shlex",
        "shutil",
        "tempfile",
        "textwrap",
        "tokenize",
    ),
    "asyncio.sslproto",
)
"""Modules that other modules import for a few rare calls."""

_LATER = ("h11",)
"""Packages that the start does not need. The HTTP server imports h11 on a thread, when it is used."""

_OWN_HASHES = ("_md5", "_sha1", "_blake2", "_sha3")
"""Python's own hashes. Some distributions omit them; hashlib then needs those of OpenSSL."""


def use_one_heap() -> None:
    """Makes glibc use one heap for all threads, which saves 1 MB. By default each thread has its own heap.

    Separate heaps help threads that allocate at the same time, but Python's threads take turns. Call this
    before threads are started. It has no effect with another C library.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


_THRESHOLDS = gc.get_threshold()


def collect_rarely() -> None:
    """Lets Python look for garbage after 100,000 new objects: imports leave little of it."""
    gc.set_threshold(100_000, *_THRESHOLDS[1:])


def collect_as_usual() -> None:
    """Ends :func:`collect_rarely`, and exempts what exists: what is imported stays to the end."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


class Deferred(ModuleType):
    """Takes the place of a module until a name of it is needed, or one is set."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        del vars(self)["__spec__"]  # found when it is needed: the package may not be imported yet

    def __getattr__(self, name: str) -> object:
        if name == "__spec__":  # of ``find_spec``, by which programs find out what is installed
            package = sys.modules.get(self.__name__.rpartition(".")[0])
            found = PathFinder.find_spec(self.__name__, package.__path__ if package else None)
            vars(self)[name] = found
            return found
        if name == "__path__":  # submodules can be imported before the package
            found = self.__spec__
            if found is not None and found.submodule_search_locations is not None:
                return found.submodule_search_locations
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(name)  # what import asks of every module
        return getattr(self.load(), name)

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType):
            super().__setattr__(name, value)  # a submodule, from import
        else:
            setattr(self.load(), name, value)

    def load(self) -> ModuleType:
        """Imports the module, which takes this place."""
        with _REPLACING:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        vars(module).update((name, one) for name, one in vars(self).items() if isinstance(one, ModuleType))
        return module


_REPLACING = Lock()


def defer_rare_modules() -> None:
    """Delays the import of modules that are rarely needed until the first use, which saves 1 MB of memory."""
    for name in _RARE:
        if name not in sys.modules:
            sys.modules[name] = Deferred(name)
    for name in _LATER:
        if name not in sys.modules and find_spec(name) is not None:  # otherwise the import fails at once
            sys.modules[name] = Deferred(name)


def import_without_libraries() -> None:
    """Imports asyncio and hashlib as if Python was built without OpenSSL.

    It saves 5 MB of memory. Only TLS in asyncio is lost; code that imports these modules itself still gets
    them. It has no effect if one of the two was imported before, or if this Python lacks built-in hashes.
    """
    if "asyncio" in sys.modules or "hashlib" in sys.modules or not all(map(find_spec, _OWN_HASHES)):
        return
    blocked = [name for name in _OPENSSL if name not in sys.modules]
    for name in blocked:
        sys.modules[name] = None  # type: ignore[assignment]  # what import reads as "there is none"
    try:
        import asyncio
        import hashlib

        del asyncio, hashlib
    finally:
        for name in blocked:
            del sys.modules[name]


class LatePattern:
    """Takes the place of a compiled regular expression until it is used."""

    def __init__(self, pattern: Any, flags: int = 0) -> None:
        self._given = pattern, flags

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)  # copy and pickle ask for it before there is anything to compile
        found = getattr(_compile(*self._given), name)
        setattr(self, name, found)
        return found


_compile = re.compile


@contextmanager
def late_patterns() -> Iterator[None]:
    """What is imported meanwhile compiles its regular expressions when it first uses them: that saves 10 ms.

    Most of those of PyYAML are for parsers that libyaml replaces.
    """
    re.compile = LatePattern  # type: ignore[assignment]
    try:
        yield
    finally:
        re.compile = _compile


class TypingExtensions(Deferred):
    """Has what ``typing`` has, and loads the real module for anything else."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or not hasattr(typing, name):
            return super().__getattr__(name)
        return getattr(typing, name)


def import_grpc_without_typing_extensions() -> None:
    """Imports gRPC with ``typing`` instead of ``typing_extensions``, which saves 0.6 MB of memory.

    gRPC needs names that ``typing`` has since Python 3.11. It has no effect if typing_extensions was imported
    before.
    """
    name = "typing_extensions"
    if name in sys.modules:
        return
    sys.modules[name] = TypingExtensions(name)
    try:
        import grpc.aio

        del grpc
    finally:
        if isinstance(sys.modules.get(name), TypingExtensions):
            del sys.modules[name]


def import_protobuf_without_python_messages() -> None:
    """Imports protobuf without the messages that are written in Python, which saves 1 MB of memory.

    The C implementation needs none of them. It has no effect with the one in Python.
    """
    from google.protobuf.internal import api_implementation

    name = "google.protobuf.internal.python_message"
    if api_implementation.Type() == "python" or name in sys.modules:
        return
    sys.modules[name] = Deferred(name)
    import google.protobuf.descriptor_pool
    import google.protobuf.internal.builder

    del google
