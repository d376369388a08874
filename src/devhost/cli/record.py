"""``devhost record``: what the backends read of this machine, as a tree that can be sent away."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import click

from devhost.config.loader import DEFAULT, load_or_everything
from devhost.telemetry.log import printable

from . import options as shared
from .recording import MANIFEST, Recording, record

_ENDING = (signal.SIGHUP, signal.SIGTERM)

SHOWN = 5
"""Differences and omissions printed; all are in the description that lies in the tree."""


@click.command("record")
@click.argument("directory", metavar="DIR", type=shared.path)
@shared.config
@shared.root
def command(directory: Path, config: Path | None, root: Path) -> None:
    """Records what the backends read of this machine in DIR, to send along with a bug report.

    `devhost discover --root DIR` then shows elsewhere what it shows here. DIR is new, or empty. With a
    configuration its backends are recorded, else every installed one. Root is not needed; what only some
    users may read is left out in any case.

    Serial numbers, MAC and IP addresses and GUIDs are part of what is recorded. A backend that fails or
    hangs is recorded as far as it got, and does not make the command fail.
    """
    shared.check_root(root)
    configuration = config or (DEFAULT if DEFAULT.exists() else None)
    loaded = load_or_everything(config)
    _leave_nothing_behind()  # only now: a plugin's import is guarded against whatever ends the program
    for line in _lines(record(loaded, directory, root, configuration), config):
        click.echo(line)


def _leave_nothing_behind() -> None:
    """Lets SIGTERM and SIGHUP end the program as Ctrl-C does, so that half a tree is removed first."""

    def end(number: int, _frame: object) -> NoReturn:
        for other in _ENDING:
            signal.signal(other, signal.SIG_IGN)  # a second one must not cut the removal short
        sys.exit(128 + number)

    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup(1) has reasons to ignore one
            signal.signal(number, end)


def _lines(made: Recording, config: Path | None) -> Iterator[str]:
    backends = made.machine.scanners
    counts = (_of(made.files, "file"), _of(made.links, "link"), f"{-(-made.bytes // 1024)} KiB")
    found = _of(len(made.machine.devices()), "device")
    yield printable(
        f"{made.directory}: {', '.join(counts)}; {found} of {', '.join(backends) or 'no backend'}"
    )
    for name, scanner in backends.items():
        if scanner.condition.reason:
            yield printable(f"backend {name} is {scanner.condition.state}: {scanner.condition.reason}")
    if made.full:
        yield f"incomplete: {made.full}"
    yield from _some("not recorded", [f"{one.path}: {one.reason}" for one in made.omissions])
    yield from _some("not as on the machine", made.differences)
    if not made.differences:
        yield "The backends find the same in it as on the machine."
    yield "It holds serial numbers, MAC and IP addresses and GUIDs. Look through it before you send it."
    # the original: beside the copy are no drop-in backends
    with_config = f" --config {_quoted(config)}" if config else ""
    yield f"  look: devhost discover --root {_quoted(made.directory)}{with_config}"
    archive = f"tar czf devhost-record.tgz -C {_quoted(made.directory.parent)} {_quoted(made.directory.name)}"
    yield f"  pack: {archive}"


def _some(title: str, texts: Sequence[str]) -> Iterator[str]:
    for text in texts[:SHOWN]:
        yield printable(f"{title}: {text}")
    if len(texts) > SHOWN:
        yield f"{title}: {len(texts) - SHOWN} more, all in {MANIFEST}"


def _of(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _quoted(path: Path | str) -> str:
    return printable(shlex.quote(str(path)))
