"""Where NVML's library is searched for, and the reason if it is not found."""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from devhost_gpu.nvml.client import NvmlClient, Scope
from devhost_gpu.nvml.library import LIBRARY, find_library, missing_reason, searched
from devhost_gpu.nvml.process import Ended
from devhost_gpu.options import GpuOptions

from devhost.discovery.runner import ServiceContext

if TYPE_CHECKING:
    from gpu_nvidia import NvidiaMachine
    from gpu_nvidia_desk import NvidiaDesk

MACHINE = f"{platform.machine()}-linux-gnu"
DRIVER = "/run/nvidia/driver"


def put(root: Path, path: str, content: bytes = b"") -> str:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return str(place)


def elf(bits: int, machine: int) -> bytes:
    """The head of a library for a machine (elf(5))."""
    return struct.pack("=4s4B8xHH", b"\x7fELF", bits, 1, 1, 0, 3, machine) + bytes(64)


def cache_of(*paths: str, before: bytes = b"") -> bytes:
    """A cache of the dynamic linker with these libraries (glibc, ``sysdeps/generic/dl-cache.h``)."""
    entries, strings = b"", b""
    begin = 48 + 24 * len(paths)
    for path in paths:
        name = begin + len(strings)
        strings += path.rpartition("/")[2].encode() + b"\0"
        entries += struct.pack("=iIIIQ", 0x303, name, begin + len(strings), 0, 0)
        strings += path.encode() + b"\0"
    head = b"glibc-ld.so.cache1.1" + struct.pack("=II20x", len(paths), len(strings))
    return before + head + entries + strings


@pytest.mark.parametrize(
    "directory",
    [
        "usr/lib64",
        f"usr/lib/{MACHINE}",
        f"lib/{MACHINE}/nvidia/current",
        f"usr/lib/{MACHINE}/nvidia",  # Jetson
        f"usr/lib/{MACHINE}/tegra",  # older Jetson
        "usr/lib/nvidia/tesla",  # Bottlerocket
        "usr/local/glibc/usr/lib",  # Talos
        "home/kubernetes/bin/nvidia/lib64",  # GKE
        "usr/lib/wsl/lib",
        "run/opengl-driver/lib",  # NixOS
        ".",
    ],
)
@pytest.mark.parametrize("driver_root", ["/", DRIVER, f"{DRIVER}/"])
def test_the_library_is_found_where_drivers_put_it(tmp_path: Path, directory: str, driver_root: str) -> None:
    assert find_library(tmp_path, driver_root) is None
    found = put(tmp_path, f"{driver_root}/{directory}/{LIBRARY}".replace("/./", "/"))
    assert find_library(tmp_path, driver_root) == found.replace("//", "/")


@pytest.mark.parametrize(
    "directory", [f"/usr/lib/{MACHINE}/nvidia", "/usr/lib/nvidia/tesla", "/opt/nvidia/565/lib"]
)
def test_the_root_may_be_the_directory_of_the_library_itself(tmp_path: Path, directory: str) -> None:
    found = put(tmp_path, f"{directory}/{LIBRARY}")
    assert find_library(tmp_path, directory) == found


def test_another_place_is_found_through_the_cache_of_the_linker(tmp_path: Path) -> None:
    place = f"/opt/vendor/driver 570/lib/{LIBRARY}"
    old = b"ld.so-1.7.0\0" + struct.pack("=I", 0)
    cache = cache_of("/usr/lib/libc.so.6", f"/gone/{LIBRARY}", place, before=old + bytes(4))
    put(tmp_path, f"{DRIVER}/etc/ld.so.cache", cache)
    assert find_library(tmp_path, DRIVER) is None
    found = put(tmp_path, DRIVER + place)
    assert find_library(tmp_path, DRIVER) == found


@pytest.mark.parametrize("keep", [0, 5, 21, 30, 60, 90])
def test_a_damaged_cache_is_no_error(tmp_path: Path, keep: int) -> None:
    put(tmp_path, f"{DRIVER}/etc/ld.so.cache", cache_of(f"/opt/{LIBRARY}")[:keep])
    put(tmp_path, f"{DRIVER}/opt/{LIBRARY}")
    assert find_library(tmp_path, DRIVER) in (None, str(tmp_path / f"run/nvidia/driver/opt/{LIBRARY}"))


def test_a_library_for_another_machine_is_passed_over(tmp_path: Path) -> None:
    own = elf(*struct.unpack("=4xB13xH", Path("/proc/self/exe").read_bytes()[:20]))
    put(tmp_path, f"{DRIVER}/usr/lib/{LIBRARY}", elf(1, 3))  # 32 bits, where Fedora has them
    assert find_library(tmp_path, DRIVER) is None
    assert missing_reason(tmp_path, DRIVER) == (
        f"{DRIVER}/usr/lib/{LIBRARY} is for another machine than {platform.machine()} "
        "(is backends.gpu.driverRoot right?)"
    )
    found = put(tmp_path, f"{DRIVER}/usr/local/nvidia/lib64/{LIBRARY}", own)
    assert find_library(tmp_path, DRIVER) == found


def test_the_reason_lists_what_was_searched(tmp_path: Path) -> None:
    assert missing_reason(tmp_path, DRIVER).startswith(f"{LIBRARY} was not found: {DRIVER} does not exist (")
    put(tmp_path, f"{DRIVER}/usr/bin/nvidia-smi")
    reason = missing_reason(tmp_path, DRIVER)
    assert reason == (
        f"{LIBRARY} was not found below {DRIVER}, in {searched()} (is backends.gpu.driverRoot right?)"
    )
    assert f"usr/lib/{MACHINE}{{,/nvidia,/nvidia/current,/tegra}}" in reason
    assert reason.count("etc/ld.so.cache") == 1
    assert missing_reason(tmp_path, f"{DRIVER}/usr/bin/nvidia-smi").startswith(
        f"{LIBRARY} was not found: {DRIVER}/usr/bin/nvidia-smi is not a directory ("
    )


def test_a_gpu_shows_where_its_library_was_searched_for(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]
) -> None:
    uuid = nvidia.gpu("0000:3b:00.0")
    (nvidia.root / "usr/lib64" / LIBRARY).rename(nvidia.root / "usr" / LIBRARY)
    assert at(nvidia).reasons() == {uuid: missing_reason(nvidia.root, "/")}
    assert at(nvidia, GpuOptions(driver_root="/usr")).reasons() == {}


def test_a_machine_without_the_library_lists_what_was_searched() -> None:
    if find_library(Path("/"), "/"):
        pytest.skip("this machine has NVIDIA's driver")
    context = ServiceContext("gpu", Path("/"))
    client = NvmlClient(context, "/", lambda message: None)
    try:
        client.ensure(Scope((("0000:3b:00.0", 1),)))
        with pytest.raises(Ended, match=r"libnvidia-ml\.so\.1 was not found below /, in usr/lib64"):
            client.ask("inventory", 20.0)
    finally:
        client.close()
        context.close()
