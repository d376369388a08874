"""Keeps the resident memory of a long-running process small."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from importlib.util import find_spec

_M_ARENA_MAX = -8
"""Parameter of ``mallopt``: the maximum number of heaps (malloc.h of glibc)."""

_OPENSSL = ("ssl", "_hashlib")
"""The modules that load OpenSSL: asyncio imports the first, hashlib the second, and both work without."""

_OWN_HASHES = ("_md5", "_sha1", "_blake2", "_sha3")
"""Python's own hashes. Some distributions omit them; hashlib then needs those of OpenSSL."""


def use_one_heap() -> None:
    """Makes glibc use one heap for all threads, which saves 1 MB. By default each thread has its own heap.

    Separate heaps help threads that allocate at the same time, but Python's threads take turns. Call this
    before threads are started. It has no effect with another C library.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def import_without_openssl() -> None:
    """Imports asyncio and hashlib as if Python was built without OpenSSL, which saves 5 MB of memory.

    Only TLS in asyncio is lost; code that imports ``ssl`` itself still gets it. It has no effect if one of
    the two was imported before, or if this Python lacks built-in hashes.
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
