"""Records what backends read on a machine as a tree of files that can be used as ``--root``.

It runs the backends like ``devhost discover``, traces the paths that they access, and copies these files. It
needs no knowledge of hardware, so third-party backends are recorded as well. Alternatives that were rejected:

- copying all of sysfs: tens of thousands of files per machine, and reading some of them has side effects;
- an intermediate file system: needs FUSE or root, which a user with a bug to report may not have;
- tracing system calls: needs a tracer, which may be missing or forbidden, as in containers.

Tracing in the process needs no privileges, but cannot see a library that reads from C. Therefore each
recording is verified: the backends run again on the tree. If they now take another path than on the machine
(files instead of a library that works only there), the missing files are copied from the machine, until
nothing is missing. Finally the devices are compared with those of the machine, and each difference is
reported.

Contents are copied right after a run, not during it: a file that changes in between is recorded with its
later content, and a file at which a backend hangs is not read a second time.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import click

from devhost.backend.errors import counted
from devhost.cli import options as shared
from devhost.config.loader import DEFAULT, load_or_everything
from devhost.config.root_directory import check_root
from devhost.runtime.log import printable

from .recorder import MANIFEST, Recording, record

_ENDING = (signal.SIGHUP, signal.SIGTERM)

SHOWN = 5
"""Differences and omissions that are printed; the description in the tree has all of them."""


@click.command(
    "record",
    help="""
    Records in DIR what the backends read on this machine, for example for a bug report.

    `devhost discover --root DIR` then shows on any machine what it shows here. DIR must be new or empty. With
    a configuration its backends are recorded, otherwise every installed one. Root is not needed: files that
    only some users can read are never recorded.

    The recording contains serial numbers, MAC and IP addresses, and GUIDs. If a backend fails or hangs, what
    it read so far is recorded, and the command succeeds.
    """,
)
@click.argument("directory", metavar="DIR", type=shared.path)
@shared.config
@shared.root
def command(directory: Path, config: Path | None, root: Path) -> None:
    check_root(root)
    configuration = config or (DEFAULT if DEFAULT.exists() else None)
    loaded = load_or_everything(config)
    _leave_nothing_behind()  # not earlier: the import of a plugin catches every exception
    for line in _lines(record(loaded, directory, root, configuration), config):
        click.echo(line)


def _leave_nothing_behind() -> None:
    """Makes SIGTERM and SIGHUP end the program like Ctrl-C, so that an incomplete tree is removed first."""

    def end(number: int, _frame: object) -> NoReturn:
        for other in _ENDING:
            signal.signal(other, signal.SIG_IGN)  # a second signal must not interrupt the removal
        sys.exit(128 + number)

    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # one that is ignored, as by nohup(1), stays ignored
            signal.signal(number, end)


def _lines(made: Recording, config: Path | None) -> Iterator[str]:
    backends = made.machine.scanners
    counts = (counted(made.files, "file"), counted(made.links, "link"), f"{-(-made.bytes // 1024)} KiB")
    found = counted(len(made.machine.devices()), "device")
    yield printable(
        f"{made.directory}: {', '.join(counts)}; {found} of {', '.join(backends) or 'no backend'}"
    )
    for name, scanner in backends.items():
        if scanner.condition.reason:
            yield printable(f"backend {name} is {scanner.condition.state}: {scanner.condition.reason}")
    if made.full:
        yield f"incomplete: {made.full}"
    yield from _some("not recorded", [f"{one.path}: {one.reason}" for one in made.omissions])
    yield from _some("different from the machine", made.differences)
    if not made.differences:
        yield "The backends find the same in this tree as on the machine."
    yield "It contains serial numbers, MAC and IP addresses, and GUIDs. Review it before you send it."
    # the original, because the drop-in backends are not copied
    with_config = f" --config {_quoted(config)}" if config else ""
    yield f"  look: devhost discover --root {_quoted(made.directory)}{with_config}"
    archive = f"tar czf devhost-record.tgz -C {_quoted(made.directory.parent)} {_quoted(made.directory.name)}"
    yield f"  pack: {archive}"


def _some(title: str, texts: Sequence[str]) -> Iterator[str]:
    for text in texts[:SHOWN]:
        yield printable(f"{title}: {text}")
    if len(texts) > SHOWN:
        yield f"{title}: {len(texts) - SHOWN} more, listed in {MANIFEST}"


def _quoted(path: Path | str) -> str:
    return printable(shlex.quote(str(path)))
