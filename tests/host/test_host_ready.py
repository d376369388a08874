"""``/readyz`` succeeds when every wanted resource has an open stream; otherwise it names the others."""

from __future__ import annotations

import threading
from dataclasses import replace

from devhost.host.shown.problems import problems
from devhost.kubelet.kubelet_socket import ABSENT

TOY = "example.com/toy"


async def test_a_backend_that_has_not_answered_yet_may_still_want_resources(rig, kubelet):
    go = threading.Event()
    rig.scripts["toy"].on_discover = lambda: go.wait(60)
    rig.timing = replace(rig.timing, first_plan=0.3)
    rig.write(f"name: {TOY}, backend: toy", "name: example.com/other, backend: other")
    try:
        async with rig.running() as host:
            await rig.until(lambda: host.planned)
            await kubelet.wait_for(lambda: kubelet.allocatable() == {"example.com/other": 1})
            await rig.until(lambda: host.ready() == (False, "no devices listed yet: toy (starting)"))
            go.set()
            await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2, "example.com/other": 1})
            await rig.until(lambda: host.ready() == (True, ""))
    finally:
        go.set()


async def test_only_a_backend_that_fails_from_the_start_prevents_readiness(rig, kubelet):
    def fail():
        raise OSError(5, "no firmware")

    rig.scripts["toy"].on_discover = fail
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        await rig.until(lambda: host.planned and host.scanners["toy"].condition.reason)
        reason = host.scanners["toy"].condition.reason
        assert "no firmware" in reason
        assert host.ready() == (False, f"no devices listed yet: toy ({reason})")
        rig.scripts["toy"].on_discover = lambda: None
        await rig.until(lambda: host.ready() == (True, ""))
        rig.scripts["toy"].on_discover = fail
        host.scanners["toy"].request_scan()
        await rig.until(lambda: host.scanners["toy"].condition.reason)
        assert host.ready() == (True, "")


async def test_a_resource_without_devices_counts_only_if_it_is_registered_empty(rig, kubelet):
    rig.scripts["toy"].devices = []
    rig.write(f"name: {TOY}, backend: toy")
    await kubelet.stop()
    async with rig.running() as host:
        await rig.until(lambda: host.ready() == (True, ""))  # no resource is wanted, so none is missing
        rig.write(f"name: {TOY}, backend: toy, whenEmpty: register")
        missing = f"no list stream yet: {TOY} (waiting: {ABSENT})"
        await rig.until(lambda: host.ready() == (False, missing))
        await kubelet.start()
        await rig.until(lambda: host.ready() == (True, ""))
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 0})


async def test_a_refused_configuration_does_not_change_readiness(rig, kubelet):
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        await rig.until(lambda: host.ready() == (True, ""))
        rig.config.write_text("version: 1\nresources: nonsense\n")
        await rig.until(lambda: host.configuration.last_reload.complaints)
        assert host.ready() == (True, "")


async def test_a_root_without_the_directories_of_a_host_is_a_problem_until_they_are_mounted(
    rig, kubelet, tmp_path
):
    root = tmp_path / "host"
    root.mkdir()
    rig.scripts["toy"].devices = []
    async with rig.running(f"name: {TOY}, backend: toy, optional: true", root=root) as host:
        reason = (
            "the host's directories are not below --root:"
            f" {root} has neither sys nor dev (mount the host's directories there)"
        )
        await rig.until(lambda: host.ready() == (False, reason))
        assert [(one.kind, one.subject, one.reason) for one in problems(host.now()).shown] == [
            ("backend", "--root", reason)
        ]
        (root / "sys").mkdir()
        host.reload()
        await rig.until(lambda: host.ready() == (True, ""))
        assert not problems(host.now()).shown
