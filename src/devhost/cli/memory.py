"""What keeps the resident memory of a long-running process small."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from importlib.util import find_spec

_M_ARENA_MAX = -8
"""Parameter of ``mallopt``: how many heaps there are at most (malloc.h of glibc)."""

_OPENSSL = ("ssl", "_hashlib")
"""What loads it: asyncio imports the one, hashlib the other, and both do without."""

_OWN_HASHES = ("_md5", "_sha1", "_blake2", "_sha3")
"""Python's own hashes, which some distributions leave out; hashlib then needs OpenSSL's."""


def use_one_heap() -> None:
    """Has glibc serve all threads from one heap, which saves 1 MB: by default each has one for itself.

    That is for threads that allocate at the same time, and Python's threads take turns. Call it before
    threads are started. Has no effect with another C library.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def import_without_openssl() -> None:
    """Imports asyncio and hashlib as in a Python that was built without OpenSSL: 5 MB of resident memory.

    Only asyncio's own TLS is gone then: whoever imports ``ssl`` for himself still gets it. Has no effect
    when somebody imported either before, or when Python has no hashes of its own.
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
