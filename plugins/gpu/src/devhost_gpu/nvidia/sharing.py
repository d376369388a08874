"""What limits containers that share NVIDIA GPUs: MPS servers, and the library of HAMi.

There are two kinds of the Multi-Process Service (MPS). NVIDIA's mps-control-daemon runs a server for each
resource: ``<root>/<resource>/pipe`` and ``<root>/shm``, which clients see as ``/mps/<resource>/pipe`` and
``/dev/shm``; it sets the limits (NVIDIA/k8s-device-plugin, ``internal/plugin/mps.go``). GKE has one server
for the node, and its device plugin sets the limits of each container by two variables
(GoogleCloudPlatform/container-engine-accelerators, ``pkg/gpu/nvidia/manager.go``). A claim that uses amounts
of a GPU needs these variables with both kinds: the daemon gives all clients of a GPU the same limits.

HAMi's library is loaded into each program by the loader's list of libraries, and reads other variables
(Project-HAMi/HAMi-core).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence

from devhost.backend import Context, Edits, Event, Mount
from devhost.backend.sysfs import Sysfs
from devhost_gpu.environment import Timings
from devhost_gpu.options import TIME_SLICE, GpuResourceOptions, Hami, sharing
from devhost_gpu.vendor import ContainerRequest

from .cards import NvidiaCard
from .time_slices import TimeSlices

DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""The variables with a client's server and its limits (NVIDIA's MPS documentation)."""

HAMI_CORES = "CUDA_DEVICE_SM_LIMIT"
HAMI_MEMORY = "CUDA_DEVICE_MEMORY_LIMIT_"
"""The variables with the limits of HAMi; the number of the GPU follows the second."""

USUAL = "/tmp/nvidia-mps"
"""The directory of pipes that CUDA uses by default."""

SHM = "/dev/shm"
"""The path where a client expects the memory that it shares with the server."""

MPS_CONTROL = "control"
"""The control daemon's socket in the directory of pipes: it exists while the daemon runs."""

LIBRARY, PRELOAD = "libvgpu.so", "ld.so.preload"
"""The files of HAMi: its library, and the list that makes the loader load it."""

IN_CONTAINER = {LIBRARY: f"/usr/local/vgpu/{LIBRARY}", PRELOAD: f"/etc/{PRELOAD}"}
"""Where containers expect them."""

LOCK = "/tmp/vgpulock"
"""Where containers expect the directory in which they take turns."""

MIB = 2**20


def limit_edits(request: ContainerRequest, cards: Sequence[NvidiaCard]) -> Edits:
    """What limits a container with these NVIDIA cards, which are in the order of CUDA's numbers."""
    use = request.resource_options
    parts = []
    whole = [card for card in cards if not card.facts.is_mig]
    if use.mps and whole:
        parts.append(_mps_edits(use, whole, request))
    if use.hami and cards:
        parts.append(_hami_edits(use.hami, cards, request))
    return Edits.merge(parts)


def _mps_edits(use: GpuResourceOptions, cards: Sequence[NvidiaCard], request: ContainerRequest) -> Edits:
    assert use.mps is not None
    pipes, seen_as = _mps_pipes(use), _mps_pipes_in_container(use)
    mounts = [Mount(pipes, seen_as, read_only=False)]
    if shm := f"{use.mps.root.rstrip('/')}/shm" if use.mps.root else use.mps.shm_directory:
        mounts.append(Mount(shm, SHM, read_only=False))
    env = {} if seen_as == USUAL else {DIRECTORY: seen_as}
    if not use.mps.root or request.consumed:
        if (cores := _cores(cards, request)) is not None:
            env[THREADS] = str(cores)
        if memory := ",".join(f"{number}={size}M" for number, size in _memory(cards, request)):
            env[MEMORY] = memory
    return Edits(mounts=tuple(mounts), env=env)


def _hami_edits(hami: Hami, cards: Sequence[NvidiaCard], request: ContainerRequest) -> Edits:
    files = _hami_files(hami).items()
    mounts = [*(Mount(path, IN_CONTAINER[name]) for name, path in files)]
    mounts.append(Mount(hami.lock_directory, LOCK, read_only=False))
    env = {f"{HAMI_MEMORY}{number}": f"{size}m" for number, size in _memory(cards, request)}
    if (cores := _cores(cards, request)) is not None:
        env[HAMI_CORES] = str(cores)
    return Edits(mounts=tuple(mounts), env=env)


def _memory(cards: Sequence[NvidiaCard], request: ContainerRequest) -> Iterator[tuple[int, int]]:
    """The number of each card whose memory is limited, and what the container gets of it in MiB.

    It is never 0, which would be no limit.
    """
    for number, card in enumerate(cards):
        if request.consumed:
            if (one := request.consumed[card.id].get("memory")) is not None:
                yield number, max(1, one.amount // MIB)
        elif isinstance(size := card.device.attributes.get("memory"), int):
            yield number, int(size * request.shares.get(card.id, 1))


def _cores(cards: Sequence[NvidiaCard], request: ContainerRequest) -> int | None:
    """What the container gets of the cores of each card, in percent; ``None`` if they are not limited."""
    parts = [int(100 * request.shares.get(card.id, 1)) for card in cards]
    if request.consumed:
        used = [request.consumed[card.id].get("cores") for card in cards]
        parts = [100 * one.amount // one.total for one in used if one is not None]
    return min(100, max(1, min(parts))) if parts else None


def _mps_pipes(use: GpuResourceOptions) -> str:
    """The directory of pipes on the host."""
    assert use.mps is not None
    root = use.mps.root.rstrip("/")
    return f"{root}/{use.resource}/pipe" if use.mps.root else use.mps.pipe_directory.rstrip("/")


def _mps_pipes_in_container(use: GpuResourceOptions) -> str:
    assert use.mps is not None
    return f"/mps/{use.resource}/pipe" if use.mps.root else use.mps.pipe_directory.rstrip("/")


def _hami_files(hami: Hami) -> Mapping[str, str]:
    return {name: f"{hami.directory.rstrip('/')}/{name}" for name in IN_CONTAINER}


class Limiters:
    """Checks whether what limits the containers of the configured entries is there, and sets time slices."""

    def __init__(self, context: Context, timings: Timings, time_slices: TimeSlices) -> None:
        self.time_slices = time_slices
        self._context = context
        self._timings = timings
        self._sysfs = Sysfs(context.root)
        # Replaced whole, never changed: scans set it on another thread.
        self._shown: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})

    def refresh(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Reads what is missing: the reason, by the name of the use (``Device.unusable_for``).

        The second result is why the time slice of a GPU is not set, by its UUID.
        """
        self._shown = self._read(sharing(self._context.entries))
        return self._shown

    async def watch(self) -> AsyncIterator[Event]:
        """Yields an event when a server has started or ended, or a library has come or gone."""
        while True:
            await asyncio.sleep(self._timings.mps_check)
            named = sharing(self._context.entries)
            if named and self.time_slices.is_due:
                await self._context.run_blocking(self.time_slices.retry)
            if named and await self._context.run_blocking(self._read, named) != self._shown:
                yield Event("nvidia", "change")

    def _read(self, entries: Collection[GpuResourceOptions]) -> tuple[Mapping[str, str], Mapping[str, str]]:
        return self.missing(entries), self.time_slices.failed

    def missing(self, entries: Collection[GpuResourceOptions]) -> Mapping[str, str]:
        """What these entries need and is not there: the reason, by the name of the use."""
        found: dict[str, str] = {}
        for use in entries:
            if use.mps and not self._sysfs.exists(socket := f"{_mps_pipes(use)}/{MPS_CONTROL}"):
                found[use.mps_use] = (
                    f"the MPS server of {use.resource} is not running: {socket} does not exist"
                )
            files = _hami_files(use.hami).values() if use.hami else ()
            if path := next((one for one in files if not self._sysfs.exists(one)), ""):
                found[use.hami_use] = f"HAMi is not installed: {path} does not exist"
            if use.time_slice and (reason := self.time_slices.missing()):
                found[TIME_SLICE] = reason
        return found
