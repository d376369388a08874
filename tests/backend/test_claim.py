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
        (claim.node, "/"),
        (claim.node, "//dev/fuse"),
        (claim.node, "/dev//fuse"),
        (claim.node, "/dev/../dev/fuse"),
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/dev/fuse", 'has no kind (write claim.node("/dev/fuse"))'),
        ("node:dev/fuse", "is malformed: 'dev/fuse' is not the absolute path"),
        ("nod:/dev/fuse", "unknown kind 'nod' (did you mean claim.node(\"/dev/fuse\")?"),
        ("pci:3b:00.0", "is malformed: '3b:00.0' is not a PCI address"),
        ("lane:1", "list 'lane' in the backend's claim_kinds"),
        ("device:gpu/x", "only Context.held() has"),
        ("fuse", "has no kind"),
        ("own: 1", "is malformed"),
        ("iommu:\u0661", "is malformed"),
        (7, "claim 7 is int, not a string"),
        (f"node:/dev/{'a' * 4200}", "has 4210 characters, more than 4200"),
    ],
)
def test_what_no_constructor_makes_is_no_claim(text: object, words: str) -> None:
    assert words in claim.flaw(text, ("own",))
    assert claim.flaw(text, ("own",)).isprintable()


def test_what_the_constructors_make_are_claims_and_so_are_declared_kinds() -> None:
    made = [
        claim.pci("0000:3b:00.0"),
        claim.node("/dev/fuse"),
        claim.iommu_group(17),
        claim.other("own", "1"),
    ]
    assert [claim.flaw(one, ("own",)) for one in made] == [""] * 4
    assert all(example.partition("(")[0].startswith("claim.") for _, example in claim.KINDS.values())
