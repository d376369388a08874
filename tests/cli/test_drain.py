"""Waiting until devices are free: who holds them, how long it waits, and when it gives up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from status_document import device, document
from status_values import Json, document_of

from devhost.backend.errors import DevhostError, EnvironmentFailure
from devhost.cli.cordon import POLL, UNAPPLIED, Drain, holding
from devhost.discovery.health import ALL
from devhost.telemetry.document import StatusDocument

LINE = "kubectl delete pod -n default meter-0"


def cordoned(found: Json, *devices: str) -> Json:
    about: Any = [
        {"backend": one.partition("/")[0], "device": one.partition("/")[2] or one} for one in devices
    ]
    found["verdicts"] = [
        {"file": "a.json", "kind": "cordon", "by": "alice", "reason": "fan", "devices": about}
    ]
    return found


def held() -> Json:
    return cordoned(document([device("FT1", allocated=True), device("FT2")]), "udev/FT1")


def free() -> Json:
    return cordoned(document([device("FT1"), device("FT2", allocated=True)]), "udev/FT1")


class Scene:
    """A drain whose clock stands still between two looks."""

    def __init__(self, states: Callable[[float], Json], *devices: str, timeout: float = 3600.0) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.said: list[str] = []
        self.states = states
        self.drain = Drain(
            self.ask, devices or ("udev/FT1",), timeout, lambda: self.now, self.sleep, self.said.append
        )

    async def ask(self) -> StatusDocument:
        return document_of(self.states(self.now))

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


async def test_it_ends_at_once_if_no_container_holds_the_device() -> None:
    scene = Scene(lambda now: free())
    await scene.drain.run()
    assert (scene.said, scene.pauses) == ([], [])


async def test_each_pod_is_named_once_and_looks_have_a_bound_and_jitter() -> None:
    scene = Scene(lambda now: held() if now < 600 else free())
    await scene.drain.run()
    assert scene.said == [LINE]
    assert 600 <= scene.now < 600 + POLL[1]
    assert all(POLL[0] <= pause <= POLL[1] for pause in scene.pauses) and len(set(scene.pauses)) > 10


async def test_it_gives_up_at_its_time_with_what_is_left() -> None:
    scene = Scene(lambda now: held(), timeout=60.0)
    with pytest.raises(
        DevhostError, match=f"the time is over, and not everything is released: {LINE}"
    ) as caught:
        await scene.drain.run()
    assert (caught.value.exit_code, scene.now) == (1, 60.0)


async def test_an_error_has_no_mark_of_a_comment() -> None:
    scene = Scene(lambda now: document([device("FT1")]), timeout=1.0)
    with pytest.raises(DevhostError, match="not everything is released: devhost has not read the file yet"):
        await scene.drain.run()


async def test_a_device_counts_as_free_only_once_devhost_has_applied_the_cordon() -> None:
    early = document([device("FT1"), device("FT2")])
    scene = Scene(lambda now: early if now < 5 else held() if now < 60 else free())
    await scene.drain.run()
    assert scene.said == [LINE] and scene.now >= 60


async def test_a_devhost_that_never_applies_it_is_an_error_of_the_machine() -> None:
    scene = Scene(lambda now: document([device("FT1")]))
    with pytest.raises(EnvironmentFailure, match="does not apply the cordon") as caught:
        await scene.drain.run()
    assert caught.value.exit_code == 3 and UNAPPLIED < scene.now < UNAPPLIED + 2 * POLL[1]


async def test_a_devhost_that_starts_meanwhile_has_time_to_apply_it_again() -> None:
    """Its status is there before its devices are, of which the verdicts in the status are."""

    def states(now: float) -> Json:
        if 30 < now < 60:
            raise EnvironmentFailure("no devhost is running on this node")
        return document([device("FT1")]) if 60 <= now < 70 else held() if now < 80 else free()

    scene = Scene(states)
    await scene.drain.run()
    assert scene.said == [LINE, "# no devhost is running on this node"] and scene.now >= 80


async def test_a_devhost_that_restarts_meanwhile_is_asked_again() -> None:
    def states(now: float) -> Json:
        if 10 < now < 60:
            raise EnvironmentFailure("no devhost is running on this node")
        return held() if now <= 10 else free()

    scene = Scene(states)
    await scene.drain.run()
    assert scene.said == [LINE, "# no devhost is running on this node"]
    with pytest.raises(EnvironmentFailure):
        await Scene(lambda now: states(30.0)).drain.run()


CONTAINER: Json = {"namespace": "ml", "pod": "train", "container": "main"}


def shared(found: Json) -> None:
    found["resources"][0]["devices"] = [{**device("all", allocated=True), "device": "all"}]
    member: Any = {"health": "Healthy", "reason": "", "numaNodes": []}
    found["resources"][0]["together"] = [{**member, "device": "FT1"}, {**member, "device": "FT2"}]


def given_another(found: Json) -> None:
    shared(found)
    found["resources"][0]["devices"][0]["given"] = ["FT2"]


def unnamed(found: Json) -> None:
    found["resources"][0]["devices"] = [{**device("FT1", allocated=True), "holder": None}]


def unlisted(found: Json) -> None:
    found["held"] = [
        {"resource": "example.com/old", "id": "FT1", "devices": ["FT1"], "holder": CONTAINER, "reason": ""}
    ]


def claimed(found: Json, *containers: Json) -> None:
    one: Any = {"request": "r", "pool": "p", "name": "ft1", "backend": "udev", "device": "FT1"}
    claim: Any = {"namespace": "ml", "name": "card", "uid": "u", "file": "f", "devices": [one]}
    dra: Any = {"claims": [{**claim, "containers": [*containers]}]}
    found["dra"] = dra


def unknown(found: Json) -> None:
    found["kubelet"]["podResources"] |= {"known": False, "reason": "no socket"}


HOLDERS: dict[str, tuple[Callable[[Json], None], list[str]]] = {
    "none": (lambda found: None, []),
    "one of all together": (shared, [LINE]),
    "it was given another": (given_another, []),
    "an unknown pod": (unnamed, ["# held by an unknown pod: example.com/serial FT1"]),
    "no longer listed": (unlisted, ["kubectl delete pod -n ml train"]),
    "a claim": (claimed, ["# held by ResourceClaim ml/card"]),
    "a claim with its pod": (lambda found: claimed(found, CONTAINER), ["kubectl delete pod -n ml train"]),
    "not known": (unknown, ["# which container holds what is not known: no socket"]),
}


@pytest.mark.parametrize(("change", "lines"), HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("devices", [["udev/FT1"], [ALL]], ids=["device", "node"])
def test_who_holds_a_device(change: Callable[[Json], None], lines: list[str], devices: list[str]) -> None:
    found = document([device("FT1"), device("FT2")])
    change(found)
    if devices == [ALL] and change is given_another:
        lines = [LINE]
    assert [*holding(document_of(found), devices)] == lines
    assert [*holding(document_of(found), ["gpu/FT1"])] == [
        line for line in lines if "not known" in line or ("train" in line and change is unlisted)
    ]
