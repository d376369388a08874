"""The taints that entries choose for causes, and for whom a device with one is prepared."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.claims import DRIVER, Scene, result
from slice_rules import slice_problems

from devhost.backend import Cause, Device, unhealthy
from devhost.backend.model import HEALTHY, Health
from devhost.dra.slices import Offered, Pool, taints_of
from devhost.planning.settings import DraTerms, Effect

FALLEN = unhealthy("the GPU has fallen off the bus (Xid 79)", Cause.XID)
FAN = unhealthy("its fan is broken")
CORDONED = unhealthy("cordoned by alice: fan", Cause.CORDONED)
EVERY = unhealthy("everything is wrong", *Cause)
CHOSEN = {Cause.XID: Effect.NO_EXECUTE, Cause.CORDONED: Effect.NONE}


def shown(health: Health, effects: Mapping[Cause, Effect] = CHOSEN) -> dict[str, str]:
    """The effects of the taints by their names, without the domain of the driver."""
    taints = taints_of(DRIVER, health, effects)
    assert all(key.startswith(f"{DRIVER}/") for key in taints)
    return {key.partition("/")[2]: effect.value for key, effect in taints.items()}


def published(health: Health, **terms: Any) -> list[Mapping[str, Any]]:
    """The devices of a slice with one that has this health, and the chosen taints."""
    pool = Pool(DRIVER, "node-1", "example.com/gpu", "gpu")
    slices, _ = pool.slices([Offered(Device("d0"), health, effects=CHOSEN)], **terms)
    assert list(slice_problems(pool.spec(slices[0], 1, 1))) == []
    return list(slices[0].devices)


@pytest.mark.conformance(121)
def test_a_cause_that_an_entry_names_has_its_own_taint_and_all_others_the_common_one() -> None:
    assert shown(FALLEN) == {"xid": "NoExecute"}
    assert shown(CORDONED) == {"cordoned": "None"}
    assert shown(FAN) == {"unhealthy": "NoSchedule"}
    assert shown(HEALTHY) == {}
    assert shown(FALLEN, {}) == shown(EVERY, {}) == {"unhealthy": "NoSchedule"}


@pytest.mark.conformance(121)
def test_a_device_with_several_causes_has_a_taint_for_each() -> None:
    assert shown(EVERY) == {"xid": "NoExecute", "cordoned": "None", "unhealthy": "NoSchedule"}
    assert shown(EVERY, dict.fromkeys(Cause, Effect.NO_EXECUTE)) == {one.value: "NoExecute" for one in Cause}


def test_the_common_taint_can_have_another_effect_for_all_causes() -> None:
    assert shown(FAN, {Cause.UNHEALTHY: Effect.NO_EXECUTE}) == {"unhealthy": "NoExecute"}
    assert shown(FALLEN, {Cause.UNHEALTHY: Effect.NO_EXECUTE}) == {"unhealthy": "NoExecute"}


def test_slices_have_the_taints_with_the_reason() -> None:
    (device,) = published(unhealthy("too hot", Cause.XID, Cause.THERMAL))
    assert device["taints"] == [
        {"key": f"{DRIVER}/xid", "value": "too-hot", "effect": "NoExecute"},
        {"key": f"{DRIVER}/unhealthy", "value": "too-hot", "effect": "NoSchedule"},
    ]


def test_without_taints_only_what_does_no_harm_is_published() -> None:
    assert published(FALLEN, dropped={"taints"}) == []
    (device,) = published(CORDONED, dropped={"taints"})
    assert "taints" not in device


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = await Scene(tmp_path).start()
    made.entry = replace(made.entry, dra=DraTerms(taints=CHOSEN))
    yield made
    made.close()


async def test_a_device_whose_taint_has_no_effect_is_prepared(scene: Scene) -> None:
    scene.offer("a", CORDONED)
    assert await scene.devices(scene.claim(1, result("gpu", "a")))


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": f"{DRIVER}/xid", "operator": "Exists", "effect": "NoExecute"},
    ],
)
async def test_a_claim_that_tolerates_the_cause_gets_the_device(
    scene: Scene, toleration: dict[str, str]
) -> None:
    scene.offer("a", FALLEN)
    assert await scene.devices(scene.claim(1, result("gpu", "a", tolerations=[toleration])))


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": f"{DRIVER}/unhealthy", "operator": "Exists"},
        {"key": f"{DRIVER}/cordoned", "operator": "Exists"},
        {"key": f"{DRIVER}/xid", "operator": "Exists", "effect": "NoSchedule"},
    ],
)
async def test_a_toleration_of_another_cause_or_effect_does_not_help(
    scene: Scene, toleration: dict[str, str]
) -> None:
    scene.offer("a", FALLEN)
    ref = scene.claim(1, result("gpu", "a", tolerations=[toleration]))
    assert "is unhealthy: the GPU has fallen off the bus" in await scene.error(ref)


async def test_every_cause_of_a_device_must_be_tolerated(scene: Scene) -> None:
    scene.offer("a", EVERY)
    xid = {"key": f"{DRIVER}/xid", "operator": "Exists"}
    rest = {"key": f"{DRIVER}/unhealthy", "operator": "Exists"}
    assert "is unhealthy" in await scene.error(scene.claim(1, result("gpu", "a", tolerations=[xid])))
    assert await scene.devices(scene.claim(2, result("gpu", "a", tolerations=[xid, rest])))


async def test_admin_access_includes_a_device_with_any_taint(scene: Scene) -> None:
    scene.offer("a", EVERY)
    assert await scene.devices(scene.claim(1, result("look", "a", adminAccess=True)))
