"""How long a program has an NVIDIA GPU before the next one's turn.

The driver has one setting for each GPU, which NVML does not offer. NVIDIA's own drivers for Kubernetes run
``nvidia-smi compute-policy`` (kubernetes-sigs/dra-driver-nvidia-gpu, ``cmd/gpu-kubelet-plugin/nvlib.go``).
A GPU loses the setting when its driver is loaded again, so it is set before each container starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from devhost.backend import AllocationError, Context
from devhost.backend.backoff import Backoff
from devhost.backend.errors import BackendError, excerpt
from devhost.backend.process import run
from devhost.backend.sysfs import prefix_of
from devhost_gpu.environment import Environment
from devhost_gpu.nvml.library import find_library
from devhost_gpu.options import TimeSlice

PROGRAM = "nvidia-smi"

DIRECTORIES = (
    "usr/bin",
    "bin",
    "usr/sbin",
    "usr/local/bin",
    "usr/local/nvidia/bin",
    "run/current-system/sw/bin",
)
"""Where it is below the driver's root, or below the directory with its libraries (GKE: ``bin``)."""

CLOSED = "the driver is released, or is being unloaded"

DENIED, RIGHTS = "Insufficient Permissions", "run devhost as root with the capability SYS_ADMIN"
"""What nvidia-smi prints without rights, and what to do."""

_TEXT = 300
"""Characters of nvidia-smi's output that are shown."""


class TimeSlices:
    """Sets the time slices of GPUs, and tries again where that failed.

    ``prepare`` of the backend calls :meth:`set`, :meth:`retry` is called on another thread. ``driver_root``
    is where the driver's files are below ``/``, ``is_closed`` whether the driver must not be opened now.
    """

    def __init__(
        self, context: Context, driver_root: str, environment: Environment, is_closed: Callable[[], bool]
    ) -> None:
        timings = environment.timings
        self._root = context.root
        self._driver_root = driver_root
        self._clock = environment.clock
        self._deadline = timings.nvidia_smi
        self._is_closed = is_closed
        self._backoff = Backoff(timings.first_delay, timings.last_delay)
        self._due = 0.0
        # Replaced whole, never changed: other threads read it.
        self._failed: Mapping[str, tuple[TimeSlice, str]] = {}

    @property
    def failed(self) -> Mapping[str, str]:
        """Why the time slice of a GPU could not be set the last time, by UUID."""
        return {uuid: reason for uuid, (_, reason) in self._failed.items()}

    @property
    def is_due(self) -> bool:
        """Whether to try again now what failed."""
        return bool(self._failed) and self._clock() >= self._due and not self._is_closed()

    def missing(self) -> str:
        """Why no time slice can be set on this machine; empty if it can be tried."""
        if self._program():
            return ""
        places = ", ".join(DIRECTORIES)
        return (
            f"timeSlice needs {PROGRAM}, which was not found below {self._driver_root}, in {places} "
            "(is backends.gpu.driverRoot right?)"
        )

    def set(self, uuids: Sequence[str], wanted: TimeSlice) -> None:
        """Sets the time slice of GPUs. Raises ``AllocationError`` with the reason why one has not got it."""
        if self._is_closed():
            raise AllocationError(f"the time slice cannot be set: {CLOSED}")
        failed: dict[str, tuple[TimeSlice, str]] = {}
        for uuid in uuids:
            if reason := self._failure(uuid, wanted):
                failed[uuid] = (wanted, reason)
        self._failed = {uuid: one for uuid, one in self._failed.items() if uuid not in uuids} | failed
        for uuid, (_, reason) in failed.items():
            self._due = self._clock() + self._backoff.delay()
            raise AllocationError(f"{uuid}: {reason}")

    def retry(self) -> None:
        """Tries again for the GPU that has waited longest."""
        for uuid, (wanted, _) in self._failed.items():
            reason = self._failure(uuid, wanted)
            others = {other: one for other, one in self._failed.items() if other != uuid}
            self._failed = others | ({uuid: (wanted, reason)} if reason else {})
            if not reason:
                self._backoff.reset()
            self._due = self._clock() + self._backoff.delay()
            return

    def _failure(self, uuid: str, wanted: TimeSlice) -> str:
        """Why the time slice of a GPU cannot be set; empty once it is."""
        if not (program := self._program()):
            return self.missing()
        library = find_library(self._root, self._driver_root)
        # nvidia-smi loads NVML by its name alone, which the loader finds only in directories of the system
        loaded = ["env", f"LD_PRELOAD={library}"] if library else []
        command = [*loaded, program, "compute-policy", "-i", uuid]
        number = get_args(TimeSlice).index(wanted)
        try:
            result = run([*command, f"--set-timeslice={number}"], deadline=self._deadline, name=PROGRAM)
        except BackendError as error:
            return f"its time slice cannot be set: {error.message}"
        if not result.status:
            return ""
        lines = (result.output + result.errors).decode(errors="replace").strip().splitlines()
        text = excerpt(lines[0], _TEXT) if lines else result.failure
        hint = f" ({RIGHTS})" if lines and DENIED in lines[0] else ""
        return f"its time slice cannot be set: {PROGRAM}: {text}{hint}"

    def _program(self) -> str:
        base = f"{prefix_of(self._root)}/{self._driver_root.strip('/')}".rstrip("/")
        paths = (f"{base}/{directory}/{PROGRAM}" for directory in DIRECTORIES)
        return next((path for path in paths if os.access(path, os.X_OK)), "")
