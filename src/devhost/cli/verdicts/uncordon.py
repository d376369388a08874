"""``devhost uncordon``: puts devices back into service."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import click

from devhost.backend.errors import DevhostError
from devhost.discovery.health import ALL
from devhost.discovery.maintenance import files

from . import place, targets


@click.command(
    "uncordon",
    help="""
    Puts DEVICE back into service after `devhost cordon`, or all of the node with `--maintenance`.

    The device need not exist. Only files of `devhost cordon` are removed, also damaged ones.

    Exits with 1 if something else keeps the device out of service, such as the file of another program.
    """,
)
@targets.options
def command(
    devices: tuple[str, ...], maintenance: bool, config: Path | None, root: Path, state_dir: Path | None
) -> None:
    names = targets.given(devices, maintenance)
    directory = place.directory(root, state_dir)
    read, now = place.read(directory, root), time.time()
    # one that has ended, too: a clock that is set back would revive it
    own = {one.names[0] for one in read.verdicts if files.is_own(one)}

    def damage(name: str) -> str:
        return read.flaws.get(str(files.own_file(directory, name)), "")

    found = _meant(names, own.union(filter(damage, names)), config, root)
    removed = set()
    for name in found.devices:
        if name not in own and not damage(name):
            click.echo(f"{targets.called(name)}: was not cordoned")
            continue
        file = files.own_file(directory, name)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise place.denied("change", directory, error) from None
        removed.add(file.name)
        damaged = f"a cordon without effect was removed: {damage(name)}"
        click.echo(f"{targets.called(name)}: {'no longer cordoned' if name in own else damaged}")
    left = [one for one in read.verdicts if one.holds(now) and one.file not in removed]
    _check([*found.devices, *sorted(found.wholes)], left, directory)


def _meant(names: Sequence[str], cordoned: Collection[str], config: Path | None, root: Path) -> targets.Meant:
    """The devices of these names; one that is cordoned need not exist."""
    known: dict[str, None] = {}
    others = []
    for name in names:
        exact = [one for one in sorted(cordoned) if name in (one, one.partition("/")[2])]
        if len(exact) > 1:
            raise targets.several(name, exact)
        known.update(dict.fromkeys(exact))
        if not exact:
            others.append(name)
    found = targets.meant(others, config, root) if others else targets.Meant([])
    return replace(found, devices=[*dict.fromkeys((*known, *found.devices))])


def _check(devices: Sequence[str], left: Sequence[files.Verdict], directory: Path) -> None:
    """Raises ``DevhostError`` if another file keeps one of the devices out of service."""
    for device in devices:
        for one in left:
            if ALL in one.names and device != ALL and files.is_own(one):
                hint = "to end that: devhost uncordon --maintenance"
                raise DevhostError(f"all devices of this node are {one.text}", hint)
            if {device, device.partition("/")[2], ALL} & {*one.names}:
                hint = f"devhost did not write {directory / one.file}: who did should remove it"
                if files.is_own(one):
                    hint = f"to end that: devhost uncordon {targets.called(device)}"
                raise DevhostError(f"{targets.called(device)} is still out of service: {one.text}", hint)
