"""Node labels as Node Feature Discovery reads them from files: what may stand in one, and which are ours.

Its worker reads every file of a directory whose name does not begin with a dot, up to 64 KiB, as lines
``name=value`` and comments that begin with ``#`` (its customization guide, "Local feature source"). A name
without a domain gets ``feature.node.kubernetes.io/`` in front. What may be a label is Kubernetes' rule
("Labels and Selectors"). The upper half is pure; :class:`FeatureDirectory` writes files and knows its own
by their names. When they are written is decided in :mod:`devhost.host.node_labels`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from devhost.backend.files import holds, make_directory, replace_file

MAX_PART = 63
"""Characters that a label's value, and its name behind the slash, may have."""

MAX_PREFIX = 253
"""Characters that the domain of a label's name may have."""

MAX_FILE = 65536
"""Bytes of a feature file; a larger one is not read at all."""

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_ILLEGAL = re.compile(r"[^-A-Za-z0-9_. ]")
_ENDS = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$")
_OPEN = ("feature.node.kubernetes.io", "profile.node.kubernetes.io")
"""The domains below kubernetes.io in which Node Feature Discovery sets labels, and those below them."""

HEADER = "# Written by devhost, which replaces and removes this file as devices come and go.\n"


def legal(text: str) -> str:
    """Some text as a label can carry it: illegal characters are left out, blanks become hyphens.

    ``NVIDIA A100-SXM4-40GB (rev a1)`` → ``NVIDIA-A100-SXM4-40GB-rev-a1``, as GPU feature discovery has it.
    May be empty, which is a legal value.
    """
    return _ENDS.sub("", "-".join(_ILLEGAL.sub("", text).split())[:MAX_PART])


def problem(name: str) -> str:
    """Why a label cannot have this name; empty if it can."""
    domain, slash, rest = name.rpartition("/")
    if slash and not (len(domain) <= MAX_PREFIX and _DOMAIN.fullmatch(domain)):
        return "what stands before its slash is not a domain"
    if len(rest) > MAX_PART:
        return f"its name is longer than {MAX_PART} characters"
    if not _PART.fullmatch(rest):
        return "its name is not made of letters, digits, '-', '_' and '.', alphanumeric at both ends"
    if f".{domain}".endswith(".kubernetes.io") and not f".{domain}".endswith(tuple(f".{d}" for d in _OPEN)):
        return f"{domain} belongs to Kubernetes itself"
    return ""


def sorted_out(found: Iterable[tuple[object, object]]) -> tuple[dict[str, str], list[str]]:
    """Of names with values those that can be labels, in order, and why the rest cannot."""
    good: dict[str, str] = {}
    wrong: list[str] = []
    for name, value in sorted(found, key=lambda pair: str(pair[0])):
        if not isinstance(name, str) or not isinstance(value, (str, int)):
            wrong.append(f"{name!r}: names are texts, values texts, numbers or true and false")
        elif reason := problem(name):
            wrong.append(f"{name!r}: {reason}")
        else:
            good[name] = str(value).lower() if isinstance(value, bool) else legal(str(value))
    return good, wrong


def render(labels: Mapping[str, str]) -> bytes:
    """The content of a feature file."""
    return (HEADER + "".join(f"{name}={value}\n" for name, value in labels.items())).encode()


class FeatureDirectory:
    """The feature files of one devhost, one for each backend, in a directory that others write to as well.

    Only files that begin with :attr:`prefix` are ever replaced or removed.

    Args:
        directory: made when first needed.
        tag: tells hosts apart; empty for the one that serves the node's kubelet.
    """

    def __init__(self, directory: Path, tag: str = "") -> None:
        self.directory = directory
        digest = hashlib.sha256(tag.encode()).hexdigest()[:8]
        self.prefix = f"devhost-{digest}_" if tag else "devhost_"  # backends' names have no underscore

    def path(self, backend: str) -> Path:
        """The file for one backend's labels."""
        return self.directory / f"{self.prefix}{backend}"

    def write(self, backend: str, labels: Mapping[str, str]) -> bool:
        """Makes a backend's file hold these labels; without any there is none. True if it was otherwise.

        May block, as everything here: not for the event loop.

        Raises:
            OSError: the directory does not let us.
            ValueError: Node Feature Discovery would not read so large a file.
        """
        path, data = self.path(backend), render(labels)
        if not labels:
            there = os.path.lexists(path)
            path.unlink(missing_ok=True)
            return there
        if len(data) > MAX_FILE:
            raise ValueError(f"{len(data)} bytes of labels are more than the {MAX_FILE} that are read")
        make_directory(self.directory)
        if not path.is_symlink() and holds(path, data):
            return False
        replace_file(path, data, f".{self.prefix}")  # hidden, so that nobody reads the unfinished file
        return True

    def sweep(self, keep: Collection[str]) -> None:
        """Removes the own files of all but some backends, and what an earlier run left unfinished.

        Raises:
            OSError: the directory does not let us.
        """
        for path in self._own():
            if path.name.removeprefix(self.prefix) not in keep:
                path.unlink(missing_ok=True)

    def _own(self) -> Iterable[Path]:
        with suppress(FileNotFoundError, NotADirectoryError):
            names = (f"{self.prefix}*", f".{self.prefix}*.part")
            return [path for glob in names for path in self.directory.glob(glob)]
        return []
