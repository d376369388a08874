"""What a backend gives a container, as edits of a specification."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from devhost.allocation.resource_backend import Granted

from . import spec
from .spec import ContainerEdits


def rendered(granted: Granted, root: Path) -> ContainerEdits:
    """The edits of a specification for what a container gets. May block: not for the event loop.

    Args:
        granted: what it gets.
        root: the host's root directory.

    Raises:
        AllocationError: a device node is missing, or CDI cannot carry it.
    """
    look = functools.partial(spec.host_node, root=root)
    return spec.container_edits(granted.edits, look, granted.left_out)


def adds_up(parts: Sequence[ContainerEdits], whole: ContainerEdits) -> bool:
    """Whether a container that gets these parts one by one has the same as with ``whole``."""
    return spec.applied(parts) == spec.applied([whole])
