"""Optional entries without an installed backend: others are served, and status and log name the backend."""

from __future__ import annotations

from status_values import status

from devhost.host.shown.problems import problems

TOY = "example.com/toy"
GPU = "name: nvidia.com/gpu, backend: gpu, where: {vendor: nvidia}, whenEmpty: register, optional: true"


def not_installed(host):
    found = status(host)["backends"]
    return {one["name"]: one["reason"] for one in found if one["state"] == "not installed"}


async def test_installed_backends_are_served_and_others_are_named(rig, kubelet, caplog):
    caplog.set_level("INFO", logger="devhost")
    async with rig.running(GPU, f"name: {TOY}, backend: toy", allocatable={TOY: 2}) as host:
        assert not_installed(host) == {"gpu": "install the package devhost-gpu"}
        assert problems(host.now()).shown == []
        assert caplog.text.count("backend is not installed") == 1


async def test_an_edit_adds_and_removes_skipped_entries(rig, kubelet, caplog):
    caplog.set_level("INFO", logger="devhost")
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 2}) as host:
        assert not_installed(host) == {}
        rig.write(f"name: {TOY}, backend: toy", GPU)
        await rig.until(lambda: not_installed(host))
        assert caplog.text.count("backend is not installed") == 1
        rig.write(f"name: {TOY}, backend: toy, share: {{replicas: 2}}", GPU)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 4})
        assert caplog.text.count("backend is not installed") == 1, "the edit did not concern it"
        rig.write(f"name: {TOY}, backend: toy")
        await rig.until(lambda: not not_installed(host))
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
