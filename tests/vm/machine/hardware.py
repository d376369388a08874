"""The machine's hardware, as arguments of QEMU.

One machine has everything, because starting one takes ten times as long as a test. Tests plug and unplug
devices by QMP from inside: ``lab/hotplug.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .image import Image

PORTS = ("gpu", "nic", "nvme", "fpga", "free0", "free1", "card")
"""Root ports, each with a slot for one device; ``free0``, ``free1`` and ``card`` are empty at first."""

WINDOWS = {"fpga": ",pref32-reserve=64M", "card": ",pref32-reserve=64M"}
"""Room for what is plugged later with more memory than a port has by default."""

KERNEL = (
    "console=ttyS0 quiet panic=-1 nokaslr no_timer_check mitigations=off random.trust_cpu=on "
    "intel_iommu=on iommu=pt drm_kms_helper.fbdev_emulation=0 iomem=relaxed "
    "nosoftlockup rcupdate.rcu_cpu_stall_suppress=1 workqueue.watchdog_thresh=0 "
    "sysctl.kernel.hung_task_timeout_secs=0 nvme_core.io_timeout=240 nvme_core.admin_timeout=240"
)
"""``nokaslr`` and ``mitigations=off`` for speed, ``panic=-1`` so that a dead kernel ends QEMU.

No console on displays: virtio_gpu frees its picture by asking the device to, and warns of a leak when the
device is taken away before it has answered. ``iomem=relaxed`` lets a test write into the memory of a card
that has its driver: registers of an FPGA (``lab/dfl.py``).

The last two lines are about the kernel's own watchdogs and limits: on a busy computer the machine stands
still for seconds, which is no fault of anything in it. A test that hangs ends by its own limit.
"""


def arguments(image: Image, project: Path, out: Path) -> Iterator[str]:
    """Everything after QEMU's name but the console. Sockets lie in the working directory.

    Args:
        project: the working tree, which the guest sees and cannot change.
        out: a directory that the guest writes to.
    """
    yield from _basis(image)
    yield from _shared("project", project, ",readonly=on")
    yield from _shared("out", out)
    yield from _monitor()
    for number, port in enumerate(PORTS, 1):
        window = WINDOWS.get(port, "")
        yield from _device(
            f"pcie-root-port,id={port},chassis={number},slot={number},addr={number + 15:x}{window}"
        )
    yield from _devices()


def _basis(image: Image) -> Iterator[str]:
    yield from ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")
    # Always in software, also where there is a /dev/kvm: in a container or a virtual machine it may be one
    # that aborts, and the same machine everywhere is worth more than a fast one here and there.
    yield from ("-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", "2", "-m", "1536")
    yield from ("-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", KERNEL)
    # first of the devices: it translates only for those that come after it
    yield from _device("intel-iommu,intremap=on")
    yield from ("-drive", f"if=none,id=root,file={image.disk},format=raw,snapshot=on,cache=unsafe")
    yield from _device("virtio-blk-pci,drive=root")


def _shared(tag: str, directory: Path, more: str = "") -> Iterator[str]:
    share = f"local,path={directory},mount_tag={tag},security_model=none,multidevs=remap"
    yield from ("-virtfs", share + more)


def _monitor() -> Iterator[str]:
    """QEMU's own interface at a serial port of the guest, and one more port for what pytest says."""
    yield from (
        "-chardev",
        "socket,id=outside,path=qmp,server=on,wait=off",
        "-mon",
        "chardev=outside,mode=control",
    )
    yield from ("-chardev", "socket,id=inside,path=qmp")
    yield from _device("virtio-serial-pci")
    yield from _device("virtserialport,chardev=inside,name=qmp")
    yield from ("-chardev", "file,id=report,path=report")
    yield from _device("virtserialport,chardev=report,name=report")


def _devices() -> Iterator[str]:
    yield from _device("virtio-gpu-pci,id=gpu0,bus=gpu")
    yield from ("-netdev", "hubport,id=wire,hubid=0")
    yield from _device("igb,id=igb0,netdev=wire,bus=nic,mac=52:54:00:00:00:01")
    yield from _device("nvme-subsys,id=subsystem0,nqn=subsystem0")
    yield from ("-blockdev", "null-co,node-name=shared,size=67108864,read-zeroes=on")
    # flexible resources are what virtual functions get theirs from, by `nvme virt-mgmt`
    yield from _device(
        "nvme,id=nvme0,serial=fixed0,subsys=subsystem0,bus=nvme,sriov_max_vfs=4,sriov_vq_flexible=8,"
        "sriov_vi_flexible=4,max_ioqpairs=18,msix_qsize=14"
    )
    yield from _device("nvme-ns,drive=shared,bus=nvme0,nsid=1,shared=on")
    for spare in ("spare0", "spare1"):
        yield from ("-blockdev", f"null-co,node-name={spare},size=67108864,read-zeroes=on")
    # a display without a render node; its memory is ordinary RAM, in which a test can lay out an FPGA card
    yield from _device("secondary-vga,id=vga0,bus=fpga,vgamem_mb=16")


def _device(description: str) -> Iterator[str]:
    yield from ("-device", description)
