"""``devhost kubelet``: a simulated kubelet to develop and debug device plugins against."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

# gRPC reads this once, when it is loaded. What it logs about ended connections only repeats the events.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from devhost.backend import threads
from devhost.backend.errors import DevhostError
from devhost.cli import options as shared
from devhost_testing.kubelet import Event, KubeletSimulator, Profile
from devhost_testing.kubelet.console import HELP, Answer, Console, Quit
from devhost_testing.kubelet.render import lines

KEEP_EVENTS = 1000
"""The number of events to keep. They are printed as they occur, so old ones are not needed."""

LONGEST_LINE = 65536
"""The maximum length of a command line in bytes."""


@click.command(
    name="kubelet",
    short_help="Simulate a kubelet, to test a device plugin without Kubernetes.",
    epilog="\b\nCommands on standard input, one per line:\n"
    + "\n".join(f"  {line}" for line in HELP.splitlines()),
    help="""
    Simulates a kubelet, to test a device plugin without Kubernetes: any plugin, in any language.

    It registers plugins in DIR, follows their device lists, allocates devices to simulated pods, and prints
    what happens. Stop it with quit, Ctrl-C or SIGTERM.

    Example: configure the plugin to use DIR instead of /var/lib/kubelet/device-plugins, and type
    "allocate 1 of example.com/thing" to see what a container would get.
    """,
)
@click.option(
    "--dir",
    "directory",
    required=True,
    metavar="DIR",
    type=shared.path,
    help="Plugin directory, in which kubelet.sock appears. Created if missing; sockets in it are removed.",
)
@click.option(
    "--profile",
    type=click.Choice(["1.36", "1.37"]),
    default="1.36",
    show_default=True,
    help="Simulated version: 1.36 and older, or 1.37 and newer. They differ when a resource registers twice.",
)
@shared.output_of("text", "json", help="Text for people, or one JSON object per line.")
@click.option("--exit-on-eof", is_flag=True, help="Stop at the end of standard input.")
def command(directory: Path, profile: Profile, output: str, exit_on_eof: bool) -> None:
    printer = _print_json if output == "json" else _print_text
    threads.provide()
    asyncio.run(
        _Session(KubeletSimulator(directory, profile, keep_events=KEEP_EVENTS), printer, exit_on_eof).run()
    )


Printer = Callable[[Event | Answer | DevhostError, str], None]


class _Session:
    """One run of the command: the kubelet, the reader of commands, and the events that end it."""

    def __init__(self, kubelet: KubeletSimulator, printer: Printer, exit_on_eof: bool) -> None:
        self._kubelet = kubelet
        self._print = printer
        self._exit_on_eof = exit_on_eof
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._done = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._kubelet.events.listen(lambda event: self._show(event, ""))
        async with self._kubelet:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._done.set)
            commands = asyncio.create_task(self._obey())
            reader = _Lines(self._lines.put_nowait)
            reader.start()
            try:
                await self._done.wait()
            finally:
                reader.stop()
                commands.cancel()
                with suppress(asyncio.CancelledError):
                    await commands

    async def _obey(self) -> None:
        console = Console(self._kubelet)
        try:
            while (line := await self._lines.get()) is not None:
                try:
                    self._show(await console.execute(line), line)
                except DevhostError as error:
                    self._show(error, line)
            if self._exit_on_eof:
                self._done.set()
        except Quit:
            self._done.set()
        except Exception:
            self._done.set()
            raise

    def _show(self, what: Event | Answer | DevhostError, line: str) -> None:
        try:
            self._print(what, line)
        except BrokenPipeError:
            # The reader is gone (`devhost kubelet … | head`). This ends the command without an error,
            # and the interpreter must not flush anything when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._done.set()


class _Lines:
    """Passes each line of standard input to ``take`` when it arrives, and ``None`` at the end.

    The descriptor stays in blocking mode, because a terminal shares that mode with its other users. It is
    read only when data is available.
    """

    def __init__(self, take: Callable[[str | None], None]) -> None:
        self._take = take
        self._descriptor = -1 if sys.stdin is None else sys.stdin.fileno()
        self._pending = b""

    def start(self) -> None:
        """Starts to read, in the running event loop."""
        if self._descriptor < 0:
            self._take(None)
            return
        try:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        except PermissionError:  # epoll does not support regular files; reading one never waits
            while self._read():
                pass

    def stop(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)

    def _read(self) -> bool:
        chunk = os.read(self._descriptor, LONGEST_LINE)
        *complete, self._pending = (self._pending + chunk).split(b"\n")
        if not chunk or len(self._pending) > LONGEST_LINE:
            complete, self._pending = [*complete, self._pending], b""
        for line in complete:
            self._take(line.decode(errors="replace"))
        if not chunk:
            self.stop()
            self._take(None)
        return bool(chunk)


def _print_text(what: Event | Answer | DevhostError, line: str) -> None:
    stamp = datetime.now().strftime("%H:%M:%S.%f")[:-3]
    if isinstance(what, Event):
        first, *rest = lines(what)
        subject = f"{what.resource}  {first}" if what.resource else first
        click.echo(f"{stamp}  {what.kind:<17} {subject}".rstrip())
        for extra in rest:
            click.echo(f"{'':14}{'':<18}{extra}")
    elif isinstance(what, Answer):
        for text in what.lines:
            click.echo(text)
    else:
        click.echo(f"{stamp}  {'failed':<17} {what}")


def _print_json(what: Event | Answer | DevhostError, line: str) -> None:
    stamp = {"time": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="microseconds")}
    if isinstance(what, Event):
        click.echo(json.dumps(stamp | what.as_dict()))
    elif isinstance(what, Answer):
        if line.strip():
            click.echo(json.dumps(stamp | {"event": "answer", "command": line.strip(), "value": what.value}))
    else:
        click.echo(json.dumps(stamp | {"event": "failed", "command": line.strip(), "reason": str(what)}))
