"""The mount, network and pid namespaces of a whole node."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal

START_LIMIT = 120.0
"""Seconds for creating the namespaces with their mounts and addresses."""

STOP_LIMIT = 60.0
"""Seconds for a process that was killed."""

_libc = ctypes.CDLL(None, use_errno=True)

_holders: set[subprocess.Popen[bytes]] = set()


def kill_all() -> None:
    """Kills all processes in all namespaces that were created here."""
    for holder in _holders:
        holder.kill()  # --kill-child also kills process 1


class Namespaces:
    """Creates them on entry; on exit all processes in them are killed, and their mounts and network removed.

    Args:
        address: the node's address, in a network that nothing else can reach.
        name: the node's name, which resolves to the address.
        log: output of processes while the namespaces are created.
        beside: whose network namespace is used, instead of a new one.
    """

    def __init__(self, address: str, name: str, log: Path, beside: Namespaces | None = None) -> None:
        self._arguments = (address, name)
        self._beside = beside
        self._log = log
        self._holder: subprocess.Popen[bytes] | None = None
        self._children: list[subprocess.Popen[bytes]] = []
        self.pid = 0
        """The host's id of the first process."""

    def __enter__(self) -> Namespaces:
        flags = ["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        script = Path(__file__).with_name("holder.py")
        inside = ["--", sys.executable, str(script), *self._arguments]
        if self._beside is None:
            command = ["unshare", "--net", *flags, *inside]
        else:
            command = ["nsenter", f"--net=/proc/{self._beside.pid}/ns/net", "unshare", *flags, *inside]
        with self._log.open("wb") as log:
            self._holder = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        _holders.add(self._holder)
        assert self._holder.stdout is not None
        ready, _, _ = select.select([self._holder.stdout], [], [], START_LIMIT)
        answer = self._holder.stdout.readline() if ready else b""
        if not answer:
            self.__exit__(None, None, None)
            raise RuntimeError(f"no namespaces: {self._log.read_text().strip()[-500:] or 'no answer'}")
        self.pid = int(answer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        holder, self._holder = self._holder, None
        if holder is None:
            return
        assert holder.stdin is not None and holder.stdout is not None
        holder.stdin.close()
        # The namespace ends once all its processes have been reaped, including those with a parent here.
        for process in (*self._children, holder):
            try:
                process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                holder.kill()  # --kill-child also kills process 1
                process.wait(STOP_LIMIT)
        self._children.clear()
        _holders.discard(holder)
        holder.stdout.close()

    def path(self, inside: str) -> Path:
        """The host's path of a path of the node, for connecting to and creating sockets."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def connect(self, port: int, timeout: float, address: str = "127.0.0.1") -> socket.socket:
        """A connection from the node to a port of its loopback address or of a pod."""
        with self._as_ours("net"):
            return socket.create_connection((address, port), timeout)

    def spawn(
        self, *command: str | Path, log: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a process of the node. The object's pid is the host's id of that process."""
        with self._as_ours("pid"), log.open("ab") as output:
            process = subprocess.Popen(
                self._inside(*command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self._children.append(process)
        return process

    def run(self, *command: str | Path, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Runs a command of the node to its end."""
        with self._as_ours("pid"):
            process = subprocess.Popen(
                self._inside(*command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        with process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def _inside(self, *command: str | Path) -> list[str]:
        # nsenter executes the command; the pid namespace is that of this thread's children
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--", *map(str, command)]

    @contextmanager
    def in_network_of(self, process: int) -> Iterator[None]:
        """This thread opens sockets in the network namespace of a process, given by the node's id."""
        with _entered("net", self.path(f"/proc/{process}/ns/net")):
            yield

    @contextmanager
    def _as_ours(self, kind: Literal["net", "pid"]) -> Iterator[None]:
        """This thread opens sockets, or starts children, in the node's namespace.

        No thread can be started while children get a different pid namespace.
        """
        with _entered(kind, Path(f"/proc/{self.pid}/ns/{kind}")):
            yield


@contextmanager
def _entered(kind: Literal["net", "pid"], namespace: Path) -> Iterator[None]:
    before = os.open(f"/proc/thread-self/ns/{kind if kind == 'net' else 'pid_for_children'}", os.O_RDONLY)
    try:
        there = os.open(namespace, os.O_RDONLY)
        try:
            _setns(there)
            try:
                yield
            finally:
                _setns(before)
        finally:
            os.close(there)
    finally:
        os.close(before)


def _setns(descriptor: int) -> None:
    if _libc.setns(descriptor, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
