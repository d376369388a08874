"""What an entry says of its cards. Fields in snake_case are the YAML's keys in camelCase."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Self

from devhost.backend import OptionError, option


@dataclass(frozen=True, slots=True)
class Mps:
    """Where the MPS server of a resource is; either ``root`` or ``pipe_directory`` is given."""

    root: str = option(
        "",
        "The root directory of NVIDIA's mps-control-daemon on the host, which keeps one server for each "
        "resource below it and sets its limits.",
        example="/run/nvidia/mps",
    )
    pipe_directory: str = option(
        "",
        "The directory on the host with the pipes of one server for the node, as on GKE; devhost then gives "
        "each container its limits of threads and memory.",
        example="/tmp/nvidia-mps",
    )
    shm_directory: str = option(
        "",
        "With `pipeDirectory`: the directory on the host that a container sees as `/dev/shm`, where the "
        "server's own is another than the container's.",
        example="/run/nvidia/shm",
    )

    def __post_init__(self) -> None:
        if bool(self.root) == bool(self.pipe_directory):
            raise OptionError(
                "must have either root or pipeDirectory",
                hint="root: /run/nvidia/mps for NVIDIA's mps-control-daemon, pipeDirectory: /tmp/nvidia-mps "
                "for one server",
            )
        if self.shm_directory and self.root:
            raise OptionError("belongs to pipeDirectory: root has its own", key="shmDirectory")
        paths = {
            "root": self.root,
            "pipeDirectory": self.pipe_directory,
            "shmDirectory": self.shm_directory,
        }
        for key, path in paths.items():
            if path and not path.startswith("/"):
                raise OptionError(f'"{path}" is not absolute', key=key)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The keys of an entry under ``resources``."""

    firmware: bool = option(
        False,
        "Whether a container with Intel GPUs also gets the nodes of their firmware interface, `/dev/mei<n>`: "
        "for monitoring agents.",
    )
    mps: Mps | None = option(
        None,
        "The MPS server that containers share NVIDIA GPUs through; MIG instances get nothing of it.",
        example={"root": "/run/nvidia/mps"},
    )
    resource: str = field(default="", init=False, metadata={"meaning": "The name of the entry."})

    def named(self, resource: str) -> Self:
        """The same, knowing what the entry is called: NVIDIA's daemon names directories after resources.

        Raises:
            OptionError: the name is a template, and MPS is wanted.
        """
        if self.mps and "{" in resource:
            raise OptionError(
                f"needs an entry with a plain name, and {resource} is a template",
                key="mps",
                hint="write an entry for each name",
            )
        made = replace(self)
        object.__setattr__(made, "resource", resource)
        return made

    @property
    def uses(self) -> Collection[str]:
        """What of it a card can be unusable for (``Device.unusable_for``)."""
        return (self.mps_use,) if self.mps else ()

    @property
    def mps_use(self) -> str:
        """What the MPS server of this resource is called there."""
        return f"mps:{self.resource}"


PLAIN = GpuUse()
"""What an entry says that has none of the keys."""
