"""Sharing by amount in the file: what could leave containers without a limit is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
from kit.backend import Plain

from devhost.backend import Attribute, option
from devhost.backend.errors import ConfigError
from devhost.config import loads
from devhost.discovery.catalog import Catalog, Installed
from devhost.planning.amounts import ENV, NO_LIMIT, Amount, Limit
from devhost.planning.settings import ResourceSettings

GIB = 2**30


@dataclass(frozen=True)
class ChipOptions:
    mps: bool = option(False, "Whether a server limits containers.")
    alone: bool = option(False, "Whether a container has the device alone.")

    @property
    def limits(self) -> Mapping[str, Collection[str]]:
        return {"mps": ("memory", "cores")} if self.mps else {}

    @property
    def why_alone(self) -> str | None:
        return "one container at a time" if self.alone else None


class Chip(Plain):
    name = "chip"
    ResourceOptions = ChipOptions
    variables: ClassVar = ("CHIP_*",)
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "kind": Attribute(str, "What it is.", "gpu"),
        "memory": Attribute(int, "Its memory.", 1, unit="Mi"),
        "rate": Attribute(int, "Its bandwidth.", 1, unit="G"),
    }


CATALOG = Catalog({"chip": Installed(Chip, "devhost-chip", "1.0", ("devhost_backends",))})
NONE = ", limit: none"


def entry(share: str, more: str = "serve: dra") -> ResourceSettings:
    text = (
        "version: 1\ndra: {driver: d.example.com}\nresources:\n"
        f"- {{name: a.b/c, backend: chip, {more}, share: {share}}}\n"
    )
    (found,) = loads(text, "f.yaml", lambda _paths, _wanted: CATALOG).resources
    return found


def complaint(share: str, more: str = "serve: dra") -> str:
    with pytest.raises(ConfigError) as caught:
        entry(share, more)
    (found,) = caught.value.diagnostics
    return f"{found.path.removeprefix('resources[0].')}: {found.message} ({found.hint})"


def test_capacities_are_read_from_attributes_and_totals() -> None:
    found = entry(
        "{capacity: {memory: {min: 1Gi, step: 256Mi, default: 4Gi, max: 40Gi}, cores: {min: 1, total: 100}, "
        "bandwidth: {min: 1G, attribute: rate}}, limit: none}"
    )
    assert found.share.amounts == (
        Amount("memory", GIB, 2**28, 40 * GIB, 4 * GIB, "memory", 2**20),
        Amount("cores", 1, usual=1, total=100),
        Amount("bandwidth", 10**9, usual=10**9, attribute="rate", unit=10**9),
    )
    assert found.share.limit == NO_LIMIT
    assert found.share.divides
    assert {"memory", "rate"} <= found.wanted()


def test_variables_count_in_the_unit_of_the_capacity() -> None:
    found = entry(
        "{capacity: {memory: {min: 1Gi, unit: Mi, step: 1Mi}}, limit: {env: {A: '{consumed.memory}'}}}"
    )
    assert found.share.limit == Limit(ENV, {"A": "{consumed.memory}"}, {"memory": 2**20})


def test_a_key_of_the_backend_limits_containers() -> None:
    found = entry("{capacity: {memory: {min: 1}}, limit: mps}", "serve: dra, mps: true")
    assert found.share.limit == Limit("mps")


def test_claims_cannot_change_what_limits_containers() -> None:
    more = "serve: dra, mps: true, dra: {claimOptions: [mps]}"
    assert complaint("{capacity: {memory: {min: 1}}, limit: mps}", more) == (
        "dra.claimOptions[0]: mps limits containers, so claims must not set it (remove it)"
    )
    assert entry("{capacity: {memory: {min: 1}}, limit: none}", more).dra.claim_options == ("mps",)


MEMORY = "capacity: {memory: {min: 1Gi}}"


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (MEMORY, "share: the key limit is required with capacity (name what limits containers, or write "),
        ("limit: none", "share.limit: has no effect without capacity"),
        (f"{MEMORY}, replicas: 2{NONE}", "share.replicas: cannot be together with capacity"),
        (f"{MEMORY}, limit: mps", "share.limit: the entry does not have the key mps, which does this"),
        (f"{MEMORY}, limit: hami", "share.limit: the entry does not have the key hami, which does this"),
        (f"{MEMORY}, limit: all", "share.limit: must be"),
        (
            f"capacity: {{size: {{min: 1}}}}{NONE}",
            'share.capacity.size: backend chip has no number "size" (write what',
        ),
        (f"capacity: {{kind: {{min: 1}}}}{NONE}", 'share.capacity.kind: backend chip has no number "kind"'),
        (f"capacity: {{slots: {{min: 1, total: 4}}}}{NONE}", 'share.capacity.slots: "slots" is no name of a'),
        (f"capacity: {{a.b/c: {{min: 1, total: 4}}}}{NONE}", 'share.capacity.a.b/c: "a.b/c" is no name of a'),
        (f"capacity: {{memory: {{}}}}{NONE}", "share.capacity.memory: the key min is required"),
        (f"capacity: {{memory: {{min: 0}}}}{NONE}", "share.capacity.memory.min: must be 1 or more"),
        (f"capacity: {{memory: {{min: 1, step: 0}}}}{NONE}", "share.capacity.memory.step: must be 1 or more"),
        (f"capacity: {{memory: {{min: 1.5}}}}{NONE}", "share.capacity.memory.min: must be a whole quantity"),
        (f"capacity: {{memory: {{min: 5 G}}}}{NONE}", "share.capacity.memory.min: must be a whole quantity"),
        (f"capacity: {{memory: {{min: 500m}}}}{NONE}", "share.capacity.memory.min: must be a whole quantity"),
        (
            f"capacity: {{memory: {{min: 2000m}}}}{NONE}",
            "share.capacity.memory.min: must be a whole quantity",
        ),
        (f"capacity: {{memory: {{min: 1e3}}}}{NONE}", "share.capacity.memory.min: must be a whole quantity"),
        (
            f"capacity: {{memory: {{min: 9Ei}}}}{NONE}",
            "share.capacity.memory.min: must be at most 9223372036854775807, which is less than 8Ei",
        ),
        (
            f"capacity: {{memory: {{total: 8, min: 1, default: 9}}}}{NONE}",
            "share.capacity.memory.default: is more than total, 8",
        ),
        (f"capacity: {{c: {{min: 2, total: 1}}}}{NONE}", "share.capacity.c.total: is less than min, 2"),
        (f"capacity: {{memory: {{min: 2, max: 1}}}}{NONE}", "share.capacity.memory.max: is less than min, 2"),
        (
            f"capacity: {{memory: {{min: 2, total: 9, attribute: memory}}}}{NONE}",
            "share.capacity.memory.total: cannot be together with attribute",
        ),
        (
            f"capacity: {{memory: {{min: 1Gi, step: 1Gi, default: 1500Mi}}}}{NONE}",
            "share.capacity.memory.default: must be min, 1Gi, and a multiple of step, 1Gi, above it "
            "(for example 1Gi)",
        ),
        (
            f"capacity: {{memory: {{min: 1G, unit: GB}}}}{NONE}",
            'share.capacity.memory.unit: must be one of "", k, M, G',
        ),
        (
            f"capacity: {{c: {{min: 10G, total: 100G, default: 1G}}}}{NONE}",
            "share.capacity.c.default: is less than min, 10G",
        ),
        (
            f"capacity: {{memory: {{min: 1, max: 4, default: 5}}}}{NONE}",
            "share.capacity.memory.default: is more than max, 4",
        ),
        (
            f"capacity: {{memory: {{min: 1Gi, unit: Mi}}}}{NONE}",
            "share.capacity.memory.unit: variables count in 1Mi, and step, 1, is not a multiple of it",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused_with_its_place(share: str, message: str) -> None:
    assert complaint(f"{{{share}}}").startswith(message)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("A: '1'", "share.limit.env: no variable has {consumed.memory}, so that containers are not limited"),
        ("A: '{memory}{consumed.memory}'", "share.limit.env.A: unknown placeholder {memory}"),
        ("A: '{consumed.cores}'", "share.limit.env.A: unknown placeholder {consumed.cores}"),
        ("'A-{id}': '{consumed.memory}'", "share.limit.env[\"A-{id}\"]: 'A-{id}' is not a variable's name"),
        ("CHIP_X: '{consumed.memory}'", "share.limit.env.CHIP_X: backend chip sets this variable"),
        ("GIVEN: '{consumed.memory}'", "share.limit.env.GIVEN: give sets this variable, too"),
    ],
)
def test_variables_that_would_not_limit_a_container_are_refused(env: str, message: str) -> None:
    share = f"{{{MEMORY}, limit: {{env: {{{env}}}}}}}"
    assert complaint(share, "serve: dra, give: {env: {GIVEN: x}}").startswith(message)


def test_a_backend_is_asked_only_for_what_it_can_limit() -> None:
    share = "{capacity: {memory: {min: 1}, rate: {min: 1}}, limit: mps}"
    assert complaint(share, "serve: dra, mps: true").startswith(
        'share.limit: mps cannot limit "rate", only memory and cores'
    )


def test_the_device_plugin_api_has_no_amounts() -> None:
    found = complaint(f"{{{MEMORY}{NONE}}}", "serve: plugin")
    assert found == (
        "share.capacity: the device plugin API has no amounts (add serve: dra, or share by replicas)"
    )


def test_a_device_for_one_container_is_not_shared_by_amount() -> None:
    assert complaint(f"{{{MEMORY}{NONE}}}", "serve: dra, alone: true").startswith("share: one container at")


def test_names_in_slices_and_amounts_together_fit_into_a_slice() -> None:
    names = ", ".join(f"a{number}: kind" for number in range(23))
    more = f"serve: dra, dra: {{attributes: {{{names}}}, capacity: {{m: memory}}}}"
    assert entry("{capacity: {memory: {min: 1}}, limit: none}", more)
    found = complaint("{capacity: {memory: {min: 1}, x: {total: 9, min: 1}}, limit: none}", more)
    assert "has 23 attributes and 2 capacities, and may have 24" in found
