"""Addresses on which a program of a test can listen."""

from __future__ import annotations

import os
import socket


def free_address() -> str:
    """``HOST:PORT`` that no other process takes before the program listens on it.

    Each process has its own loopback address: the ports of 127.0.0.1 are also those of other tests' clients.
    """
    own = f"127.{1 + os.getpid() // 65536 % 254}.{os.getpid() // 256 % 256}.{os.getpid() % 256}"
    with socket.socket() as probe:
        probe.bind((own, 0))
        return f"{own}:{probe.getsockname()[1]}"
