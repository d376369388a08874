"""Keeps OpenSSL out of a process that opens no TLS connection: 5 MB of resident memory."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_OPENSSL = ("ssl", "_hashlib")
"""What loads it: asyncio imports the one, hashlib the other, and both do without."""

_OWN_HASHES = ("_md5", "_sha1", "_blake2", "_sha3")
"""Python's own hashes, which some distributions leave out; hashlib then needs OpenSSL's."""


def import_without_openssl() -> None:
    """Imports asyncio and hashlib as in a Python that was built without OpenSSL, which they provide for.

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
