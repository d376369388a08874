"""``devhost uncordon``: puts devices back into service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from devhost.backend.errors import DevhostError
from devhost.discovery.health import ALL
from devhost.discovery.maintenance import files

from . import targets


@click.command(
    "uncordon",
    help="""
    Puts DEVICE back into service after `devhost cordon`, or all of the node with `--maintenance`.

    The device need not exist. Only files of `devhost cordon` are removed.

    Exits with 1 if something else keeps the device out of service, such as the file of another program.
    """,
)
@targets.options
def command(
    devices: tuple[str, ...], maintenance: bool, config: Path | None, root: Path, state_dir: Path | None
) -> None:
    names = targets.given(devices, maintenance)
    place = targets.directory(root, state_dir)
    verdicts = targets.in_force(place, root)
    every = targets.in_force(place, root, ended=True)  # a clock that is set back would revive them
    own = {one.names[0]: one for one in every if files.is_own(one)}
    found = _meant(names, [*own], config, root)
    for name in found:
        if name in own:
            try:
                (place / own[name].file).unlink(missing_ok=True)
            except OSError as error:
                raise targets.denied("change", place, error) from None
            click.echo(f"{targets.called(name)}: no longer cordoned")
        else:
            click.echo(f"{targets.called(name)}: was not cordoned")
    left = [one for one in verdicts if one.file not in {own[name].file for name in found if name in own}]
    _check(found, left, place)


def _meant(names: Sequence[str], cordoned: Sequence[str], config: Path | None, root: Path) -> Sequence[str]:
    """Each device as ``BACKEND/ID``; one that is cordoned need not exist."""
    known: dict[str, None] = {}
    others = []
    for name in names:
        exact = [one for one in cordoned if name in (one, one.partition("/")[2])]
        if len(exact) > 1:
            raise targets.several(name, exact)
        known.update(dict.fromkeys(exact))
        if not exact:
            others.append(name)
    if others:
        known.update(dict.fromkeys(targets.meant(others, config, root)))
    return [*known]


def _check(devices: Sequence[str], left: Sequence[files.Verdict], place: Path) -> None:
    """Raises ``DevhostError`` if another file keeps one of the devices out of service."""
    for device in devices:
        for one in left:
            if ALL in one.names and device != ALL and files.is_own(one):
                hint = "to end that: devhost uncordon --maintenance"
                raise DevhostError(f"all devices of this node are {one.text}", hint)
            if {device, device.partition("/")[2], ALL} & {*one.names}:
                hint = f"devhost did not write {place / one.file}: who did should remove it"
                raise DevhostError(f"{targets.called(device)} is still out of service: {one.text}", hint)
