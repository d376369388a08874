"""What allocation needs to know of an NVIDIA GPU or MIG instance beside its attributes."""

from __future__ import annotations

from dataclasses import dataclass

CAPABILITIES = "/dev/nvidia-caps"
"""Where the driver's capability nodes are."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a MIG instance consists of (``nvmlDeviceAttributes_t``). Its GPU instance shares the engines."""

    gpu_slices: int
    compute_slices: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@dataclass(frozen=True, slots=True)
class NvidiaFacts:
    """A GPU, or a MIG instance of one.

    ``uuid``
        ``GPU-…`` or ``MIG-…``; empty for a GPU that no driver of NVIDIA's has told of, which is withheld.
    ``gpu_uuid``
        That of the physical GPU: the same for a GPU, the parent's for a MIG instance.
    ``address``
        PCI address of the physical GPU, ``0000:3b:00.0``.
    ``index``
        The number in NVIDIA's own order as ``NVIDIA_VISIBLE_DEVICES`` takes it: ``0``, or ``0:1`` for a MIG
        instance; empty where it is not known. It may be another after a reboot.
    ``minor``
        The physical GPU's node is ``/dev/nvidia<minor>``; ``None`` where it is not known.
    ``instance``
        Of a MIG instance: the ids of its GPU instance and of its compute instance.
    ``capabilities``
        Of a MIG instance: the minors of the capability nodes that give access to these two,
        ``/dev/nvidia-caps/nvidia-cap<minor>``. Empty where the driver does not say.
    ``shape``
        Of a MIG instance, where NVML tells it.
    ``cdi``
        What a CDI specification of the toolkit calls it, ``nvidia.com/gpu=GPU-…``; empty where none does,
        or nobody has looked.
    ``cdi_extras``
        What goes with it there, by such names: ``…/gds=all``, ``…/imex-channel=0``.
    """

    uuid: str
    gpu_uuid: str
    address: str
    index: str = ""
    minor: int | None = None
    instance: tuple[int, int] | None = None
    capabilities: tuple[int, ...] = ()
    shape: Shape | None = None
    cdi: str = ""
    cdi_extras: tuple[str, ...] = ()

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG instance."""
        return self.instance is not None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The device nodes that are its alone, or its and its siblings'; not the driver's control nodes."""
        own = () if self.minor is None else (f"/dev/nvidia{self.minor}",)
        return (*own, *(f"{CAPABILITIES}/nvidia-cap{minor}" for minor in self.capabilities))
