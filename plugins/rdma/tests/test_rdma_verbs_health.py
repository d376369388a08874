"""The deep probe in service: whom it asks, what it makes of the answers, and how often it speaks of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pytest
import rdma_connectx as connectx
from devhost_rdma import Rdma
from devhost_rdma.backend import RdmaOptions
from devhost_rdma.verbs import ProbeResult, Verbs, VerbsHealth, VerbsProbe

from devhost.backend import HEALTHY, Device, unhealthy
from devhost.discovery.runner import ServiceContext

DEVICES = [Device("0000:3b:00.0"), Device("0000:3b:00.1"), Device("rxe0")]
NAMES = {"0000:3b:00.0": "mlx5_0", "0000:3b:00.1": "mlx5_1"}
LOG = logging.getLogger("test_rdma_deep")


class FakeVerbs(Verbs):
    """What takes the place of pyverbs."""

    def __init__(self) -> None:
        super().__init__()
        self.installed = True
        self.asked: list[list[str]] = []
        self.answers: Mapping[str, ProbeResult] = {}

    @property
    def is_installed(self) -> bool:
        return self.installed

    def probe(self, names: Sequence[str]) -> Mapping[str, ProbeResult]:
        self.asked.append(list(names))
        return self.answers


@pytest.fixture
def pyverbs() -> FakeVerbs:
    return FakeVerbs()


def test_the_main_rdma_device_of_each_present_device_is_probed(pyverbs):
    pyverbs.answers = {
        "mlx5_0": ProbeResult(HEALTHY),
        "mlx5_1": ProbeResult(unhealthy("cannot be opened: x")),
    }
    found = VerbsHealth(VerbsProbe.AUTO, LOG, pyverbs).probe(DEVICES, NAMES)
    assert pyverbs.asked == [["mlx5_0", "mlx5_1"]]
    assert found == {"0000:3b:00.0": HEALTHY, "0000:3b:00.1": unhealthy("cannot be opened: x")}


def test_an_inconclusive_result_is_logged_once_without_a_verdict(pyverbs, caplog):
    caplog.set_level(logging.INFO)
    pyverbs.answers = {"mlx5_0": ProbeResult(None, note="libibverbs does not know it")}
    probe = VerbsHealth(VerbsProbe.AUTO, LOG, pyverbs)
    for _ in range(3):
        assert probe.probe(DEVICES, NAMES) == {}
    assert caplog.messages == ["only sysfs shows the health of mlx5_0: libibverbs does not know it"]
    pyverbs.answers = {"mlx5_0": ProbeResult(HEALTHY)}
    probe.probe(DEVICES, NAMES)
    pyverbs.answers = {"mlx5_0": ProbeResult(None, note="libibverbs does not know it")}
    probe.probe(DEVICES, NAMES)
    assert len(caplog.messages) == 2


def test_an_answer_about_another_device_is_ignored(pyverbs):
    pyverbs.answers = {"mlx5_9": ProbeResult(HEALTHY)}
    assert VerbsHealth(VerbsProbe.AUTO, LOG, pyverbs).probe(DEVICES, NAMES) == {}


def test_without_devices_nothing_is_started(pyverbs):
    assert VerbsHealth(VerbsProbe.ALWAYS, LOG, pyverbs).probe([], {}) == {}
    assert pyverbs.asked == []


def test_the_probe_can_be_disabled(pyverbs):
    assert VerbsHealth(VerbsProbe.NEVER, LOG, pyverbs).probe(DEVICES, NAMES) == {}
    assert pyverbs.asked == []


@pytest.mark.parametrize(("mode", "warnings"), [(VerbsProbe.AUTO, 0), (VerbsProbe.ALWAYS, 1)])
def test_missing_pyverbs_is_logged_once_if_the_probe_is_required(mode, warnings, pyverbs, caplog):
    pyverbs.installed = False
    probe = VerbsHealth(mode, LOG, pyverbs)
    for _ in range(3):
        assert probe.probe(DEVICES, NAMES) == {}
    assert len(caplog.messages) == warnings
    assert all("pyverbs is not installed" in message for message in caplog.messages)


def test_a_recorded_tree_is_never_probed(pyverbs, tmp_path):
    connectx.connectx5_roce(tmp_path)
    backend = Rdma(RdmaOptions(), ServiceContext("rdma", tmp_path, ("*",)), verbs=pyverbs)
    assert backend.probe(backend.discover()) == {}
    assert pyverbs.asked == []


def test_a_container_probes_if_the_nodes_are_mounted_in_dev(pyverbs, tmp_path):
    connectx.connectx5_roce(tmp_path)
    context = ServiceContext("rdma", tmp_path, ("*",))
    own_nodes = str(tmp_path / "dev" / "infiniband")
    backend = Rdma(RdmaOptions(), context, verbs=pyverbs, own_nodes=own_nodes)
    backend.probe(backend.discover())
    assert pyverbs.asked == [["mlx5_0", "mlx5_1"]]
