"""A backend that provisions hardware is called at the start and for new options, and shown in the status."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from scraped_series import value
from status_values import document_of, status

from devhost.backend import NotYet, option
from devhost.backend.errors import BackendError
from devhost.cli.status_report import show
from devhost.host.shown.status import captured
from devhost.telemetry.document import without_holders
from devhost.telemetry.metrics import Metrics

TOY = "example.com/toy"


@dataclass(frozen=True)
class Options:
    count: int = option(0)


@dataclass(frozen=True)
class Optional(Options):
    @property
    def provisions(self) -> bool:
        return self.count > 0


def make_provide(rig, calls):
    """The toy backend provisions a number of devices: one succeeds, two waits, three fails."""

    def provision(self):
        calls.append(self.options.count)
        if self.options.count == 2:
            raise NotYet("a pod has it")
        if self.options.count == 3:
            raise BackendError("the kernel refuses three")

    rig.classes["toy"] = type("Provider", (rig.classes["toy"],), {"provision": provision, "Options": Options})


def write(rig, count):
    rig.config.write_text(
        f"version: 1\nbackends: {{toy: {{count: {count}}}}}\nresources:\n  - {{name: {TOY}, backend: toy}}\n"
    )


def shown(host):
    (backend,) = (one for one in status(host)["backends"] if one["name"] == "toy")
    found = backend["provisioning"]
    return found and (found["state"], found["reason"])


async def test_provisioning_follows_the_options_and_affects_no_device(rig, kubelet):
    calls = []
    make_provide(rig, calls)
    write(rig, 1)
    async with rig.running(allocatable={TOY: 2}) as host:
        await rig.until(lambda: shown(host) == ("ok", ""))
        for count, expected in (
            (2, ("waiting", "a pod has it")),
            (3, ("failed", "the kernel refuses three")),
        ):
            write(rig, count)
            await rig.until(lambda expected=expected: shown(host) == expected)
            assert calls[-1] == count
            assert kubelet.allocatable() == {TOY: 2}
            assert status(host)["backends"][0]["state"] == "ok"
        write(rig, 1)
        await rig.until(lambda: shown(host) == ("ok", ""))


async def test_a_backend_without_provision_has_no_provisioning(rig, kubelet):
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 2}) as host:
        assert shown(host) is None


async def test_a_backend_whose_options_change_no_hardware_has_no_provisioning(rig, kubelet):
    calls = []
    make_provide(rig, calls)
    rig.classes["toy"].Options = Optional
    write(rig, 0)
    async with rig.running(allocatable={TOY: 2}) as host:
        assert shown(host) is None and calls == []
        write(rig, 1)
        await rig.until(lambda: shown(host) == ("ok", ""))
        assert calls[-1] == 1


async def test_the_status_names_who_holds_what_provisioning_waits_for(rig, kubelet):
    held = {"toy": frozenset()}

    def provision(self):
        if held["toy"]:
            raise NotYet("d0 keeps its mode while a pod holds it", held=held["toy"])

    rig.classes["toy"] = type("Provider", (rig.classes["toy"],), {"provision": provision})
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 2}) as host:
        allocations = rig.host.allocations.of(TOY)
        (token,) = (await kubelet.admit("pod", "main", TOY, 1)).device_ids
        await rig.until(lambda: allocations.leases.holder(token))
        held["toy"] = rig.host.allocations.claims_in_use()
        host.backends.recheck()
        await rig.until(lambda: shown(host) == ("waiting", "d0 keeps its mode while a pod holds it"))
        document = status(host)
        (backend,) = document["backends"]
        holder = {"namespace": "default", "pod": "pod", "container": "main"}
        assert backend["provisioning"]["heldBy"] == [holder]
        assert "d0 keeps its mode while a pod holds it (default/pod/main)" in show(
            document_of(document), datetime.now(UTC)
        )
        (hidden,) = without_holders(captured(host)()).backends
        assert not hidden.provisioning.held_by
        kubelet.release("pod")
        await rig.until(lambda: not allocations.tokens())
        assert "heldBy" not in status(host)["backends"][0]["provisioning"]


async def test_a_backend_that_is_no_longer_configured_is_not_provisioned(rig, kubelet):
    calls = []
    make_provide(rig, calls)
    write(rig, 2)
    async with rig.running() as host:
        await rig.until(lambda: len(calls) > 1)
        rig.write("name: example.com/other, backend: other")
        await rig.until(lambda: list(host.scanners) == ["other"])
        before = len(calls)
        host.reload()
        await rig.until(lambda: host.configuration.generation == 3)
        assert len(calls) == before


async def test_hardware_is_provisioned_without_any_resource_of_its_backend(rig, kubelet):
    calls = []
    make_provide(rig, calls)
    rig.config.write_text(
        "version: 1\nbackends: {toy: {count: 1}}\nresources: [{name: example.com/other, backend: other}]\n"
    )
    async with rig.running() as host:
        await rig.until(lambda: calls == [1])
        assert kubelet.allocatable().keys() <= {"example.com/other"}
        assert shown(host) is not None


async def test_a_backend_without_resources_does_not_run_unless_its_options_change_hardware(rig, kubelet):
    calls = []
    make_provide(rig, calls)
    rig.classes["toy"].Options = Optional
    other = "[{{name: example.com/other, backend: other}}]"
    text = f"version: 1\nbackends: {{{{toy: {{{{count: {{}}}}}}}}}}\nresources: {other}\n"
    rig.config.write_text(text.format(0))
    async with rig.running() as host:
        await kubelet.wait_for(lambda: "example.com/other" in kubelet.allocatable())
        assert list(host.scanners) == ["other"]
        rig.config.write_text(text.format(1))
        await rig.until(lambda: calls == [1])


async def test_provisioning_that_waits_for_a_pod_is_tried_again_when_the_pod_ends(rig, kubelet):
    woken = []
    make_provide(rig, [])
    write(rig, 2)
    async with rig.running(allocatable={TOY: 2}) as host:
        await rig.until(lambda: shown(host) == ("waiting", "a pod has it"))
        host.backends.provisioning["toy"].wake = lambda: woken.append("toy")
        await starts_and_ends(rig, kubelet)
        assert woken == ["toy"]
        write(rig, 1)
        await rig.until(lambda: shown(host) == ("ok", ""))
        await starts_and_ends(rig, kubelet)
        assert woken == ["toy"]


async def starts_and_ends(rig, kubelet):
    """A pod gets a device, and releases it."""
    allocations = rig.host.allocations.of(TOY)
    (token,) = (await kubelet.admit("pod", "main", TOY, 1)).device_ids
    await rig.until(lambda: allocations.leases.holder(token))
    kubelet.release("pod")
    await rig.until(lambda: not allocations.tokens())


async def test_metrics_show_the_state_of_provisioning(rig, kubelet):
    metrics = Metrics()
    make_provide(rig, [])

    def states():
        labels = ({"backend": "toy", "state": state} for state in ("ok", "waiting", "failed"))
        return [value(metrics, "devhost_provisioning", **one) for one in labels]

    write(rig, 1)
    async with rig.running(metrics=metrics):
        await rig.until(lambda: states() == [1, 0, 0])
        write(rig, 2)
        await rig.until(lambda: states() == [0, 1, 0])
        write(rig, 3)
        await rig.until(lambda: states() == [0, 0, 1])
        rig.write("name: example.com/other, backend: other")
        await rig.until(lambda: states() == [None, None, None])
