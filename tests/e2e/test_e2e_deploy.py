"""Image and chart with the profile minimal: the process on the node, its rights, and its resources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from onenode.cluster import Cluster
from onenode.kubectl import Refused
from onenode.release import Release
from onenode.settings import PLUGIN_DIRECTORY
from onenode.shipped import CHART, Shipped

FUSE, KVM, TUN = (f"devhost.dev/{name}" for name in ("fuse", "kvm", "tun"))
SHARES = 100
MINIMAL = yaml.safe_load((CHART / "profiles" / "minimal.yaml").read_text())
OPEN_FUSE = "import os; os.stat('/host/dev/fuse'); os.open('/host/dev/fuse', os.O_RDWR)"


@pytest.fixture(scope="module")
def release(cluster: Cluster, shipment: Shipped) -> Iterator[Release]:
    with Release(cluster, shipment, MINIMAL) as release:
        yield release


def test_the_chart_starts_a_ready_pod_and_the_node_shows_its_resources(cluster, release):
    assert release.container()["ready"]
    assert release.get("/readyz").status == 200
    assert release.get("/healthz").status == 200
    for resource, node in ((FUSE, "/dev/fuse"), (KVM, "/dev/kvm"), (TUN, "/dev/net/tun")):
        if Path(node).exists():
            cluster.shows(resource, SHARES)
        else:
            assert cluster.counts(resource) in (None, (0, 0))


def test_a_pod_gets_its_device(cluster, release, pods):
    cluster.shows(FUSE, SHARES)
    without = pods.create("without").running()
    pod = pods.create("with-fuse", {FUSE: 1}).running()
    assert pod.nodes() - without.nodes() == {"/dev/fuse"}
    assert pod.opens("/dev/fuse")


def test_it_runs_as_root_without_any_capability(cluster, release):
    process = cluster.namespaces.path(f"/proc/{release.process()}")
    lines = (process / "status").read_text().splitlines()
    status = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    assert set(status["Uid"]) == {"0"}
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind][0], 16) == 0, kind
    assert status["NoNewPrivs"] == ["1"]
    assert status["Seccomp"] == ["2"], "2 is a filter"


def test_it_can_write_only_to_the_kubelets_plugin_directory_of_the_node(cluster, release):
    assert writable(cluster, release) == {PLUGIN_DIRECTORY, "/run/devhost", "/var/lib/devhost"}


def writable(cluster: Cluster, release: Release) -> set[str]:
    """Where the container can write, except what runtime and kubelet create for it alone."""
    mounts = cluster.namespaces.path(f"/proc/{release.process()}/mountinfo").read_text().splitlines()
    options = {fields[4]: fields[5].split(",") for fields in (line.split() for line in mounts)}
    own = ("/proc", "/dev", "/sys", "/etc/hosts")
    return {
        place
        for place, flags in options.items()
        if "rw" in flags and not any(place == root or place.startswith(f"{root}/") for root in own)
    }


def test_no_token_is_mounted(cluster, release):
    pod = release.pod()
    assert not [volume for volume in pod["spec"]["volumes"] if "projected" in volume or "secret" in volume]
    mounts = cluster.namespaces.path(f"/proc/{release.process()}/mountinfo").read_text()
    assert "secrets" not in mounts


def test_it_lists_the_nodes_devices_and_cannot_open_them(release):
    with pytest.raises(Refused, match="PermissionError"):
        release.execute("python3", "-c", OPEN_FUSE)


def test_the_kubelets_own_probes_pass(cluster, release):
    """A container whose liveness probe fails is restarted."""
    pod = release.pod()
    (container,) = pod["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    cluster.refreshed()
    assert release.container()["restartCount"] == 0
    assert release.container()["ready"]


def test_the_node_reaches_the_status_page_at_the_pods_address(release):
    page = release.get("/")
    assert (page.status, page.kind) == (200, "text/html")
    assert "devhost" in page.text
    shown = release.get("/status.json")
    assert (shown.status, shown.kind) == (200, "application/json")
    by_socket = release.status()
    document = json.loads(shown.text)
    assert document["devhost"]["pid"] == by_socket["devhost"]["pid"]
    assert [each["name"] for each in document["resources"]] == [
        each["name"] for each in by_socket["resources"]
    ]


def test_it_has_its_own_network_namespace(cluster, release):
    def network(process: int) -> Path:
        return cluster.namespaces.path(f"/proc/{process}/ns/net").readlink()

    assert network(release.process()) != network(1)


def test_the_privileged_profile_can_open_devices_and_write_nothing_else(cluster, release):
    release.apply(MINIMAL | {"securityProfile": "privileged"})
    try:
        release.execute("python3", "-c", OPEN_FUSE)
        assert writable(cluster, release) == {PLUGIN_DIRECTORY, "/run/devhost", "/var/lib/devhost"}
    finally:
        release.apply(MINIMAL)
