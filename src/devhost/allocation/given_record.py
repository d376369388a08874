"""The record of what containers were given: a file of devhost's own, for what no other source has.

The kubelet's checkpoint has the paths of an answer, but neither the numbers of the nodes nor the device that
claimed each of them, and of an answer with CDI names only the names. The file of a claim follows its
devices, so what its running containers got is known only here.

The file has one line for each gift. Nothing depends on it: if it is missing, damaged, too large or of another
kubelet, devhost knows less, refuses nothing, and writes it again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from devhost.backend import trusted
from devhost.backend.errors import DAMAGED, DevhostError, EnvironmentFailure
from devhost.backend.files import make_directory, replace_file
from devhost.backend.frozen import frozen

from .given import Gift, Node, Token

MAX_BYTES = 8 << 20
"""A larger file is neither written nor read. 100 000 tokens need about 5 MB."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Differs after each boot (``random(4)``); the same in every container of the machine."""

_VERSION = 1


def boot(path: Path) -> str:
    """The id of this boot, from such a file; empty if it is not known."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class Unusable(DevhostError):
    """The record cannot be read or written; the message is the reason."""


@frozen(slots=True)
class Recorded:
    """What a record has: gifts by token and by claim."""

    tokens: Mapping[Token, Gift] = field(default_factory=dict)
    claims: Mapping[str, Gift] = field(default_factory=dict)


class GivenRecord:
    """The record for one kubelet. Every method may block.

    ``directory`` is for the state of devhost, and made when first needed; ``None`` for no record. ``kubelet``
    is the kubelet's device plugin directory, ``boot_id`` a file with the id of this boot.
    """

    def __init__(self, directory: Path | None, kubelet: Path, boot_id: Path = BOOT_ID) -> None:
        self._kubelet = os.fspath(kubelet.absolute())
        name = hashlib.sha256(os.fsencode(self._kubelet)).hexdigest()[:12]
        self.file = None if directory is None else directory.absolute() / f"given-{name}.json"
        self._boot_id = boot_id
        self._written = b""

    def read(self) -> Recorded:
        """The gifts in the file; none if there is no file.

        Containers start again after a boot. So of an earlier boot no number counts, and of answers that a
        runtime looks up at each start nothing does. Raises ``Unusable`` if it is damaged, too large, of
        another version or kubelet, or others can change it.
        """
        if self.file is None:
            return Recorded()
        try:
            data = trusted.content(self.file, MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return Recorded()
        except EnvironmentFailure as error:
            raise Unusable(str(error)) from None
        except OSError as error:
            raise Unusable(f"cannot read {self.file}: {error.strerror or error}") from None
        try:
            content = json.loads(data)
            version, kubelet = content["version"], content["kubelet"]
            same_boot = content["boot"] == boot(self._boot_id)
            if (version, kubelet) == (_VERSION, self._kubelet):
                return _recorded(content["given"], same_boot=same_boot)
        except DAMAGED:
            raise Unusable(f"{self.file} is damaged") from None
        raise Unusable(f"{self.file} is of another version of devhost, or of another kubelet")

    def write(self, given: Mapping[Token, Gift], claims: Mapping[str, Gift]) -> None:
        """Makes the file hold these gifts, atomically, also if it was removed.

        Raises ``Unusable`` or ``OSError``.
        """
        if self.file is None:
            return
        data = self._text(given, claims)
        if data == self._written and self.file.exists():
            return
        if len(data) > MAX_BYTES:
            raise Unusable(f"{self.file} would be larger than {MAX_BYTES >> 20} MiB")
        make_directory(self.file.parent, 0o700)
        replace_file(self.file, data, f".{self.file.stem}-", 0o600)
        self._written = data

    def _text(self, given: Mapping[Token, Gift], claims: Mapping[str, Gift]) -> bytes:
        together: dict[tuple[str, int], tuple[Gift, list[str]]] = {}
        for (resource, token), gift in given.items():
            together.setdefault((resource, id(gift)), (gift, []))[1].append(token)
        rows: list[dict[str, Any]] = [
            {"resource": resource, "tokens": tokens, **_row(gift)}
            for (resource, _), (gift, tokens) in together.items()
        ]
        rows += [{"claim": uid, **_row(gift)} for uid, gift in claims.items()]
        head = {"version": _VERSION, "kubelet": self._kubelet, "boot": boot(self._boot_id)}
        lines = ",\n".join(sorted(map(json.dumps, rows)))
        return f'{json.dumps(head)[:-1]}, "given": [\n{lines}\n]}}\n'.encode()


def _row(gift: Gift) -> dict[str, Any]:
    row: dict[str, Any] = {
        "nodes": [[node.path, node.number, *(node.key or ())] for node in gift.nodes],
    }
    if gift.names:
        row["names"] = sorted(gift.names)
    if gift.container:
        row["container"] = gift.container
    if gift.unclaimed:
        row["unclaimed"] = sorted(gift.unclaimed)
    return row


def _recorded(rows: Any, *, same_boot: bool) -> Recorded:
    """The gifts in the rows of a record; any exception that ``read`` handles if they are none."""
    tokens: dict[Token, Gift] = {}
    claims: dict[str, Gift] = {}
    for row in rows:
        gift = Gift(
            tuple(_nodes(row["nodes"], same_boot=same_boot)),
            frozenset(map(_text, row.get("names", ()))),
            _text(row.get("container", "")),
            frozenset(map(_text, row.get("unclaimed", ()))),
        )
        if gift.follows and not same_boot:
            continue
        if "claim" in row:
            claims[_text(row["claim"])] = gift
        else:
            tokens.update(((_text(row["resource"]), _text(token)), gift) for token in row["tokens"])
    return Recorded(tokens, claims)


def _nodes(rows: Any, *, same_boot: bool) -> Iterator[Node]:
    for path, number, *key in rows:
        if len(key) not in (0, 2):
            raise ValueError(key)
        known = (_text(key[0]), _text(key[1])) if key else None
        yield Node(_text(path), _text(number) if same_boot else "", known)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value
