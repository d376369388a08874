"""The answers of the program that uses NVML, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from devhost.backend import Usage
from devhost.backend.frozen import frozen

LOST, RESET_REQUIRED = 15, 16
"""``NVML_ERROR_GPU_IS_LOST`` and ``NVML_ERROR_RESET_REQUIRED``."""

UNMADE = -3
"""Not an error of NVML: :mod:`.instances` reports it if it created nothing, such as where another one is."""

DRAINED = -2
"""Not an error of NVML: :mod:`.child` reports it for a GPU that no process may open."""

ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada-lovelace",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
"""``NVML_DEVICE_ARCH_…``, spelled as in the labels of GPU feature discovery."""


@frozen
class NvmlError:
    """NVML answered with an error: its number and text; ``age`` as in :class:`Check`."""

    code: int
    text: str
    age: float = 0.0

    def __str__(self) -> str:
        if self.code == LOST:
            return "the GPU has fallen off the bus (NVML: GPU is lost)"
        if self.code == RESET_REQUIRED:
            return "the GPU needs a reset (NVML: GPU requires restart)"
        if self.code == DRAINED:
            return "it is being drained (nvidia-smi drain)"
        return f"NVML: {self.text}"


@frozen
class Shape:
    """The parts of a MIG instance (``nvmlDeviceAttributes_t``). Its GPU instance shares the engines."""

    gpu_slices: int
    compute_slices: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@frozen
class Instance:
    """A MIG instance. ``memory`` is in MiB."""

    uuid: str
    index: int
    gi: int
    ci: int
    name: str
    memory: int | None
    shape: Shape | None


@frozen
class Gpu:
    """A GPU. ``memory`` is in MiB; unsupported values are ``None`` or empty.

    ``mig`` is whether MIG is on, ``mig_next`` whether it will be after the next reset. ``clique`` is where it
    is in a fabric that several nodes share, ``<UUID of the cluster>.<number>``.
    """

    uuid: str
    index: int | None
    minor: int | None
    name: str
    memory: int | None
    capability: str
    architecture: str
    serial: str
    firmware: str
    mig: bool
    mig_next: bool
    instances: tuple[Instance, ...]
    clique: str = ""


@frozen
class Placement:
    """Where a GPU instance is: its profile's id, its first memory slice, and how many it takes."""

    profile: int
    start: int
    size: int
    name: str = ""

    def overlaps(self, other: Placement) -> bool:
        """Whether both take a memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@frozen
class Profile:
    """What a GPU instance of a profile has; ``memory`` is in MiB. ``name`` is as in ``1g.10gb+me``."""

    profile: int
    name: str
    slices: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    memory: int
    placements: tuple[Placement, ...]


@frozen
class GpuInstance:
    """A GPU instance: its id, where it is, the ids of its compute instances, and the UUIDs of MIG devices."""

    gi: int
    placement: Placement
    computes: tuple[int, ...]
    uuids: tuple[str, ...] = ()


@frozen
class Partitions:
    """How a GPU can be divided, and how it is."""

    profiles: tuple[Profile, ...]
    instances: tuple[GpuInstance, ...]


@frozen
class Made:
    """A GPU instance that was created, and the MIG device in it, whose number is ``index``."""

    gi: int
    ci: int
    uuid: str
    index: int


@frozen
class Inventory:
    """The report of NVML; ``gpus`` by PCI address, including those with an error.

    GPUs that have not answered yet are missing.
    """

    driver: str
    cuda: str
    gpus: Mapping[str, Gpu | NvmlError]


PROHIBITED = 2
"""``NVML_COMPUTEMODE_PROHIBITED``."""


@frozen
class Fabric:
    """The registration of a GPU with the fabric manager of NVSwitches.

    ``state`` is ``NVML_GPU_FABRIC_STATE_…``; ``status`` is an error of NVML, which counts if the state is
    :data:`COMPLETED`; ``health`` is a mask.
    """

    state: int
    status: int
    health: int


UNSUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)
"""Values of :attr:`Fabric.state`; 0 on a machine without NVSwitches."""

NOT_SUPPORTED = 3
"""``NVML_ERROR_NOT_SUPPORTED``: as the status, a GPU that takes no part in the fabric but works alone."""

ROUTE_UNHEALTHY = 1 << 4
"""The value 1 (true) of bits 4 and 5 of the health (``NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE``)."""

ROUTE_BITS = 3 << 4
"""Both bits."""


@frozen
class Check:
    """The health of a GPU. ``None``: it cannot report that.

    ``recovery`` is the recommended action (``NVML_GPU_RECOVERY_ACTION_…``). The other fields are about
    memory: whether rows will be replaced at the next reset, whether uncorrectable errors were among the
    reasons, whether replacing failed, and whether pages will be retired. ``fabric`` is its registration with
    the fabric manager, ``is_linked`` whether any of its NVLinks is active, ``is_ready`` whether confidential
    GPUs may be used (true for others), ``is_licensed`` whether a vGPU has its license (true for others),
    ``is_prohibited`` whether its compute mode lets no program use it.
    ``age`` is how many seconds older than the request the answer may be: some GPUs answer late.
    """

    uuid: str
    recovery: int | None = None
    remap_uncorrectable: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    retirement_pending: bool = False
    fabric: Fabric | None = None
    is_linked: bool | None = None
    is_ready: bool | None = None
    is_licensed: bool | None = None
    is_prohibited: bool = False
    age: float = 0.0


SWITCH = "switch"
"""Represents all NVSwitches together: they connect all GPUs that have links to them."""


@frozen
class NvLinks:
    """The active NVLinks of each GPU: the number of links to each peer, by PCI address."""

    peers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def between(self, a: str, b: str) -> int:
        """The number of links between two GPUs; 0 for a GPU and itself.

        The report of one end is enough, because the other GPU may not answer. For links to switches, it is
        the number of the GPU with fewer links.
        """
        if a == b:
            return 0
        one, other = self.peers.get(a, {}), self.peers.get(b, {})
        direct = max(one.get(b, 0), other.get(a, 0))
        return direct + min(one.get(SWITCH, 0), other.get(SWITCH, 0))


def inventory(answer: Mapping[str, Any]) -> Inventory:
    cuda = int(answer["cuda"] or 0)  # 12080 is 12.8
    return Inventory(
        driver=answer["driver"] or "",
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        gpus={address: _error(gpu) or _gpu(gpu) for address, gpu in answer["gpus"].items()},
    )


def partitions(answer: Mapping[str, Any]) -> Partitions:
    """Reads the answer to ``placements`` of one GPU."""
    names = {one["profile"]: one["name"] for one in answer["profiles"]}
    return Partitions(
        tuple(Profile(**{**one, "placements": tuple(_placements(one))}) for one in answer["profiles"]),
        tuple(
            GpuInstance(
                one["gi"],
                Placement(one["profile"], one["start"], one["size"], names[one["profile"]]),
                tuple(one["computes"]),
                tuple(one["uuids"]),
            )
            for one in answer["instances"]
        ),
    )


def _placements(profile: Mapping[str, Any]) -> Iterator[Placement]:
    for start, size in profile["placements"]:
        yield Placement(profile["profile"], start, size, profile["name"])


def checks(answer: Mapping[str, Any]) -> dict[str, Check | NvmlError]:
    """Reads the answer to ``probe``, by PCI address."""
    return {address: _error(gpu) or _check(gpu) for address, gpu in answer.items()}


def links(answer: Mapping[str, Any]) -> NvLinks:
    return NvLinks({address: gpu.get("peers", {}) for address, gpu in answer.items()})


def usage(answer: Mapping[str, Any]) -> dict[tuple[str, str], Usage]:
    """Reads the answer to ``usage``: by PCI address, and the UUID of a MIG instance or an empty text."""
    found = {}
    for address, gpu in answer.items():
        if "error" not in gpu:
            busy = gpu["busy"]
            found[address, ""] = _usage(gpu["memory"], None if busy is None else min(busy, 100) / 100)
            found.update(((address, uuid), _usage(memory)) for uuid, memory in gpu["instances"].items())
    return found


def processes(answer: Mapping[str, Any]) -> dict[str, list[tuple[int, int | None, int | None]]]:
    """Reads the answer to ``processes``, by PCI address: ids of a process, a GPU and a compute instance."""
    return {
        address: [(pid, gi, ci) for pid, gi, ci in gpu["processes"]]
        for address, gpu in answer.items()
        if "error" not in gpu
    }


def _usage(memory: Sequence[int] | None, busy: float | None = None) -> Usage:
    return Usage(busy, *(memory or (None, None)))


def _error(answer: Mapping[str, Any]) -> NvmlError | None:
    error = answer.get("error")
    return NvmlError(int(error["code"]), str(error["text"]), _age(answer)) if error else None


def _age(answer: Mapping[str, Any]) -> float:
    return float(answer.get("age", 0.0))


def _gpu(answer: Mapping[str, Any]) -> Gpu:
    memory, capability, mig = answer["memory"], answer["capability"], answer["mig"] or (0, 0)
    return Gpu(
        uuid=answer["uuid"],
        index=answer["index"],
        minor=answer["minor"],
        name=answer["name"] or "",
        memory=None if memory is None else memory >> 20,
        capability=".".join(map(str, capability)) if capability else "",
        architecture=ARCHITECTURES.get(answer["architecture"], ""),
        serial=answer["serial"] or "",
        firmware=answer["vbios"] or "",
        mig=bool(mig[0]),
        mig_next=bool(mig[1]),
        instances=tuple(_instance(one) for one in answer["instances"] if _is_name(one["uuid"])),
        clique=_clique(*clique) if (clique := answer.get("clique")) else "",
    )


def _clique(cluster: str, number: int) -> str:
    """Empty for a fabric within a node, whose cluster has no id."""
    parts = (cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:])
    return f"{'-'.join(parts)}.{number}" if cluster.strip("0") else ""


def _is_name(uuid: str) -> bool:
    """Whether an instance can be claimed by its UUID. One without a valid UUID cannot be offered."""
    return uuid.isprintable() and bool(uuid) and uuid == uuid.strip()


def _instance(answer: Mapping[str, Any]) -> Instance:
    shape = Shape(*answer["shape"]) if answer["shape"] else None
    return Instance(**{**answer, "name": answer["name"] or "", "shape": shape})


def _check(answer: Mapping[str, Any]) -> Check:
    _, uncorrectable, pending, failed = answer["remapped"] or (0, 0, 0, 0)
    return Check(
        uuid=answer["uuid"],
        recovery=answer["recovery"],
        remap_uncorrectable=int(uncorrectable),
        remap_pending=bool(pending),
        remap_failed=bool(failed),
        retirement_pending=bool(answer["retired"]),
        fabric=Fabric(*fabric) if (fabric := answer.get("fabric")) else None,
        is_linked=answer.get("linked"),
        is_ready=answer.get("ready"),
        is_licensed=answer.get("licensed"),
        is_prohibited=answer.get("mode") == PROHIBITED,
        age=_age(answer),
    )
