"""Recordings of machines that lack most of sysfs: only what some other program reads, copied file by file.

Values follow recordings of MI300X in the tests of ROCm's device plugin (locations, identifiers, versions),
and the trees that the tests of Intel's device plugin make.
"""

from __future__ import annotations

from pathlib import Path

from gpu_amd import ACROSS, INTRA_SOCKET, MI300X_MEMORY, MODES, MOST_PARTITIONS

BUSES = (0x05, 0x26, 0x46, 0x65, 0x85, 0xA6, 0xC6, 0xE5)


def write(path: Path, **files: str) -> None:
    """Files of a device, each with its text."""
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(f"{text}\n")


def lines(**properties: int) -> str:
    """A file of the compute topology."""
    return "\n".join(f"{name} {number}" for name, number in properties.items())


def amd(root: Path, *modes: str, nps: str = "NPS1") -> Path:
    """MI300X, each in a compute partition mode, as far as AMD's device plugin looks.

    It reads the functions below the driver, the partitions below the platform bus, and the compute topology.
    Neither buses, nor banks of memory, nor device nodes are recorded. A console has the first card node.
    """
    topology = root / "sys/class/kfd/kfd/topology/nodes"
    write(topology / "0", properties=lines(cpu_cores_count=96, simd_count=0, drm_render_minor=0))
    nodes: list[int] = []
    partition = 0
    for gpu, mode in enumerate(modes):
        function = root / f"sys/module/amdgpu/drivers/pci:amdgpu/0000:{BUSES[gpu]:02x}:00.0"
        write(
            function,
            current_compute_partition=mode,
            current_memory_partition=nps,
            mem_info_vram_total=str(MI300X_MEMORY),
            numa_node=str(gpu * 2 // len(modes)),
        )
        for number in range(MOST_PARTITIONS):
            place = function
            if number:
                place = root / f"sys/devices/platform/amdgpu_xcp_{partition}"
                partition += 1
            card = gpu * MOST_PARTITIONS + number + 1
            write(place / f"drm/card{card}", dev=f"226:{card}")
            write(place / f"drm/renderD{card + 127}", dev=f"226:{card + 127}")
            if number < MODES[mode]:
                facts = lines(
                    simd_count=152,
                    gfx_target_version=90402,
                    location_id=BUSES[gpu] << 8 | number,
                    domain=0,
                    drm_render_minor=card + 127,
                )
                write(topology / str(len(nodes) + 1), properties=facts)
                nodes.append(gpu)
    for a, gpu in enumerate(nodes, 1):
        for b, other in enumerate(nodes, 1):
            weight = INTRA_SOCKET if gpu == other else ACROSS
            link = lines(type=11, node_to=b, weight=weight, min_bandwidth=0, max_bandwidth=0)
            if a != b:
                write(topology / f"{a}/io_links/{b}", properties=link)
    return root


def intel(root: Path, *, is_linked: bool) -> Path:
    """An Arc Pro (xe), a Flex 170 with a virtual function (i915), as far as Intel's device plugin looks.

    It reads the directories of the class of DRM devices. ``is_linked``: ``device`` leads to a directory with
    the function's address as its name; otherwise it is that directory, and only ``uevent`` has the address.
    """
    cards = (("0000:03:00.0", "xe", "0xe212"), ("0000:4d:00.0", "i915", "0x56c0"))
    for number, (address, driver, model) in enumerate((*cards, ("0000:4d:00.1", "i915", "0x56c0"))):
        card = root / f"sys/class/drm/card{number}"
        function = root / f"sys/.devices/{address}" if is_linked else card / "device"
        write(function, vendor="0x8086", device=model, numa_node="1")
        write(card, dev=f"226:{number}")
        if is_linked:
            (card / "device").symlink_to(function)
            (function / "driver").symlink_to(f"../../bus/pci/drivers/{driver}")
        else:
            write(function, uevent=f"DRIVER={driver}\nPCI_SLOT_NAME={address}")
        for name in (f"card{number}", f"renderD{number + 128}"):
            (function / "drm" / name).mkdir(parents=True)
            write(root / "dev/dri", **{name: ""})
        if number == 1:
            write(function, sriov_numvfs="1")
    return root
