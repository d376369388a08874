"""Claims are the same strings in every backend, and a mistake is an error instead of a claim of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devhost.backend import claim


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (claim.pci("0000:3b:00.0"), "pci:0000:3b:00.0"),
        (claim.pci("10000:e1:00.7"), "pci:10000:e1:00.7"),
        (claim.node("/dev/fuse"), "node:/dev/fuse"),
        (claim.auxiliary("mlx5_core.sf.4"), "aux:mlx5_core.sf.4"),
        (claim.iommu_group("17"), "iommu:17"),
        (claim.iommu_group(17), "iommu:17"),
        (claim.block("8:0"), "block:8:0"),
        (claim.usb("1-1.2"), "usb:1-1.2"),
        (claim.rdma("0000:3b:00.0"), "rdma:0000:3b:00.0"),
        (claim.infiniband("mlx5_0"), "ib:mlx5_0"),
        (claim.fpga("region0"), "fpga:region0"),
        (claim.mig("MIG-1"), "mig:MIG-1"),
        (claim.partition("amdgpu_xcp_3"), "partition:amdgpu_xcp_3"),
        (claim.device("gpu", "0000:3b:00.0"), "device:gpu/0000:3b:00.0"),
        (claim.other("my-bus", "slot 4"), "my-bus:slot 4"),
    ],
)
def test_a_claim_is_the_same_string_for_all_backends(made: str, text: str) -> None:
    assert made == text


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (claim.pci, "3b:00.0"),
        (claim.pci, "0000:3B:00.0"),
        (claim.pci, "0000:3b:00.0 "),
        (claim.pci, "pci:0000:3b:00.0"),
        (claim.node, "dev/fuse"),
        (claim.node, "/dev/"),
        (claim.node, "/dev/fu\nse"),
        (claim.iommu_group, ""),
        (claim.iommu_group, -1),
        (claim.block, "8"),
        (claim.usb, ""),
        (claim.infiniband, " mlx5_0"),
        (lambda kind: claim.other(kind, "x"), "PCI"),
        (lambda kind: claim.other(kind, "x"), "a:b"),
    ],
)
def test_an_invalid_name_is_refused(make: Callable[..., str], wrong: object) -> None:
    with pytest.raises(ValueError, match=r"is not|names nothing"):
        make(wrong)
