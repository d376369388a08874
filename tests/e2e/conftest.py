"""One cluster for the whole run; each test starts its own devhost, devices and pods."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from devhost_testing import zram as zram_devices
from devhost_testing.zram import Zram
from onenode import binaries, namespaces, probe, shipped, waiting
from onenode.access import Access
from onenode.claims import Claims, Driver
from onenode.cluster import Cluster
from onenode.offers import FUSE, SHARES, configuration
from onenode.plugin import Devhost
from onenode.pods import Pods
from onenode.shipped import Shipped

SWITCH = "DEVHOST_E2E"
TIMEOUT = 900
"""Seconds for one test; the first one also waits for the cluster."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "e2e: needs a real kubelet and container runtime (make e2e, as root)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    reason = _why_not()
    for item in items:
        if str(item.path).startswith(here) and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _why_not() -> str:
    if os.environ.get(SWITCH) != "1":
        return "needs a cluster (run make e2e)"
    if reason := probe.why_not():
        return reason
    try:
        binaries.find()
    except binaries.Missing as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A ready node without devhost or pods."""
    with binaries.alone(), Cluster(binaries.find(), binaries.cache() / "run") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def access(cluster: Cluster) -> Iterator[None]:
    """The rights that are shipped, for a DRA driver on the node."""
    with Access(cluster):
        yield


@pytest.fixture
def claims(cluster: Cluster) -> Iterator[Claims]:
    """Creates claims and classes; everything of the driver is removed after the test."""
    claims = Claims(cluster)
    yield claims
    claims.clear()


@pytest.fixture
def devhost(cluster: Cluster) -> Iterator[Devhost]:
    """A devhost with the usual configuration, whose resources the node shows."""
    with Devhost(cluster, configuration()) as devhost:
        cluster.shows(FUSE, SHARES)
        yield devhost


@pytest.fixture
def driver(cluster: Cluster, access: None, claims: Claims) -> Iterator[Driver]:
    """A devhost that can serve claims; it serves nothing yet."""
    with Driver(cluster) as driver:
        yield driver


@pytest.fixture
def pods(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """Creates pods; they are deleted after the test, while its driver still runs."""
    if "driver" in request.fixturenames:
        request.getfixturevalue("driver")
    pods = Pods(cluster)
    yield pods
    pods.clear()


@pytest.fixture(scope="session")
def shipment(cluster: Cluster) -> Shipped:
    """The chart, and the image in the node's runtime."""
    try:
        shipment = shipped.find()
    except shipped.Missing as error:
        pytest.skip(str(error))
    cluster.load_image(shipment.archive, *(f"{shipped.IMAGE}:{tag}" for tag in shipped.TAGS))
    return shipment


@pytest.fixture
def zram() -> Iterator[Zram]:
    """Plugs real devices; they are removed after the test."""
    if reason := zram_devices.why_not():
        pytest.skip(reason)
    with Zram() as zram:
        yield zram


def pytest_keyboard_interrupt() -> None:
    """Kills the clusters first: then fixtures do not wait for objects to be deleted, which takes a minute."""
    namespaces.kill_all()
    waiting.hurry()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(cluster, Cluster):
        cluster.save(item.name)
        report.sections.append(("logs", f"of the cluster and of devhost: {cluster.logs}"))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Shows at once why a test failed: the run may be stopped before pytest shows all failures at its end."""
    if report.failed and report.nodeid.startswith("tests/e2e/"):
        sys.__stdout__.write(f"\n{report.longreprtext}\n")
