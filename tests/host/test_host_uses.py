"""A device that is unusable for one use is Unhealthy only in resources with that use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from kit.allocator import allocated
from status_values import status

from devhost.allocation.allocator import UnhealthyDevice
from devhost.backend import AllocateRequest, Edits, option
from devhost.backend.errors import MAX_REASON
from devhost.host.shown.problems import problems

PLAIN, FAST = "example.com/plain", "example.com/fast"
WHY = "d0 has no uverbs node"


@dataclass(frozen=True)
class Use:
    fast: bool = option(False, "Whether the fast node is handed out.")

    @property
    def uses(self) -> frozenset[str]:
        return frozenset({"fast"} if self.fast else ())


@pytest.fixture
def one_use(rig: Any) -> Any:
    """Two devices that two resources share; ``d0`` is unusable for a use."""
    script = rig.scripts["toy"]
    plain = rig.classes["toy"]

    class Toy(plain):  # type: ignore[misc, valid-type]
        ResourceOptions = Use

        def allocate(self, request: AllocateRequest) -> Edits:
            return super().allocate(request)  # type: ignore[no-any-return]

    rig.classes["toy"] = Toy
    first, other = script.devices
    script.devices = [replace(first, unusable_for={"fast": WHY}), other]
    rig.write(
        f"name: {PLAIN}, backend: toy, exclusive: false",
        f"name: {FAST}, backend: toy, exclusive: false, fast: true",
    )
    return rig


async def test_only_resources_with_the_use_show_the_device_unhealthy(
    one_use: Any, kubelet: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with one_use.running() as host:
        await kubelet.wait_for(lambda: kubelet.allocatable() == {PLAIN: 2, FAST: 1})
        shown = {one["name"]: one for one in status(host)["resources"]}
        reasons = {
            name: {device["id"]: device["reason"] for device in one["devices"]} for name, one in shown.items()
        }
        assert reasons == {PLAIN: {"d0": "", "d1": ""}, FAST: {"d0": WHY, "d1": ""}}
        (problem,) = problems(host.now()).shown
        assert (problem.subject, problem.reason) == (f"{FAST} d0", WHY)
        (line,) = [one for one in caplog.records if one.getMessage() == "device is unhealthy"]
        assert vars(line)["fields"] == {"resource": FAST, "device": "d0", "reason": WHY}


async def test_only_resources_with_the_use_refuse_to_allocate_the_device(one_use: Any, kubelet: Any) -> None:
    async with one_use.running() as host:
        await kubelet.wait_for(lambda: kubelet.allocatable() == {PLAIN: 2, FAST: 1})
        with pytest.raises(UnhealthyDevice, match=f"d0 is unhealthy: {WHY}"):
            await allocated(host.services[FAST].allocator, ["d0"])
        await allocated(host.services[PLAIN].allocator, ["d0"])


async def test_a_use_can_appear_and_disappear_while_devhost_runs(one_use: Any, kubelet: Any) -> None:
    async with one_use.running():
        await kubelet.wait_for(lambda: kubelet.allocatable() == {PLAIN: 2, FAST: 1})
        lame, other = one_use.scripts["toy"].devices
        one_use.change("toy", [replace(lame, unusable_for={}), other])
        await kubelet.wait_for(lambda: kubelet.allocatable() == {PLAIN: 2, FAST: 2})
        one_use.change("toy", [lame, other])
        await kubelet.wait_for(lambda: kubelet.allocatable() == {PLAIN: 2, FAST: 1})


async def test_an_edited_entry_needs_the_use_from_then_on(one_use: Any, kubelet: Any) -> None:
    one_use.write(f"name: {PLAIN}, backend: toy")
    async with one_use.running():
        await kubelet.wait_for(lambda: kubelet.allocatable() == {PLAIN: 2})
        one_use.write(f"name: {PLAIN}, backend: toy, fast: true")
        await kubelet.wait_for(lambda: kubelet.allocatable() == {PLAIN: 1})
        one_use.write(f"name: {PLAIN}, backend: toy")
        await kubelet.wait_for(lambda: kubelet.allocatable() == {PLAIN: 2})


async def test_a_container_with_all_devices_gets_those_that_have_the_use(one_use: Any, kubelet: Any) -> None:
    one_use.write(f"name: {FAST}, backend: toy, fast: true, share: {{of: all, replicas: 2}}")
    async with one_use.running():
        await kubelet.wait_for(lambda: kubelet.allocatable() == {FAST: 2})
        await kubelet.admit("pod", "main", FAST, 1)
        started = await kubelet.start_container("pod", "main")
        assert started.envs["DEVICES"] == "d1"


async def test_a_reason_is_never_empty_and_has_a_bounded_length(one_use: Any, kubelet: Any) -> None:
    first, second = one_use.scripts["toy"].devices
    one_use.scripts["toy"].devices = [
        replace(first, unusable_for={"fast": "x" * 5000}),
        replace(second, unusable_for={"fast": " "}),
    ]
    async with one_use.running() as host:
        await kubelet.wait_for(lambda: kubelet.allocatable() == {PLAIN: 2, FAST: 0})
        reasons = [one.reason for one in problems(host.now()).shown]
        assert sorted(map(len, reasons)) == [len("the backend gives no reason"), MAX_REASON]
