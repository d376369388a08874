"""The deep probe in service: whom it asks, what it makes of the answers, and how often it speaks of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pytest
import rdma_connectx as connectx
from devhost_rdma import backend as backend_module
from devhost_rdma import verbs
from devhost_rdma.options import VerbsProbe
from devhost_rdma.verbs import DeepProbe, Verdict

from devhost.backend import HEALTHY, Device, unhealthy

DEVICES = [Device("0000:3b:00.0"), Device("0000:3b:00.1"), Device("rxe0")]
NAMES = {"0000:3b:00.0": "mlx5_0", "0000:3b:00.1": "mlx5_1"}
LOG = logging.getLogger("test_rdma_deep")


class Verbs:
    """What takes the place of pyverbs."""

    def __init__(self, installed: bool = True) -> None:
        self.installed = installed
        self.asked: list[list[str]] = []
        self.answers: Mapping[str, Verdict] = {}

    def available(self) -> bool:
        return self.installed

    def probe(self, names: Sequence[str]) -> Mapping[str, Verdict]:
        self.asked.append(list(names))
        return self.answers


@pytest.fixture
def pyverbs(monkeypatch: pytest.MonkeyPatch) -> Verbs:
    fake = Verbs()
    monkeypatch.setattr(verbs, "available", fake.available)
    monkeypatch.setattr(verbs, "probe", fake.probe)
    return fake


def test_the_main_rdma_device_of_each_device_that_is_here_is_asked(pyverbs):
    pyverbs.answers = {"mlx5_0": Verdict(HEALTHY), "mlx5_1": Verdict(unhealthy("cannot be opened: x"))}
    found = DeepProbe(VerbsProbe.AUTO, LOG).probe(DEVICES, NAMES)
    assert pyverbs.asked == [["mlx5_0", "mlx5_1"]]
    assert found == {"0000:3b:00.0": HEALTHY, "0000:3b:00.1": unhealthy("cannot be opened: x")}


def test_nothing_learnt_says_nothing_of_a_device_and_is_logged_once(pyverbs, caplog):
    caplog.set_level(logging.INFO)
    pyverbs.answers = {"mlx5_0": Verdict(None, note="libibverbs does not know it")}
    probe = DeepProbe(VerbsProbe.AUTO, LOG)
    for _ in range(3):
        assert probe.probe(DEVICES, NAMES) == {}
    assert caplog.messages == ["mlx5_0 is judged by sysfs alone: libibverbs does not know it"]
    pyverbs.answers = {"mlx5_0": Verdict(HEALTHY)}
    probe.probe(DEVICES, NAMES)
    pyverbs.answers = {"mlx5_0": Verdict(None, note="libibverbs does not know it")}
    probe.probe(DEVICES, NAMES)
    assert len(caplog.messages) == 2


def test_an_answer_about_something_else_is_left_out(pyverbs):
    pyverbs.answers = {"mlx5_9": Verdict(HEALTHY)}
    assert DeepProbe(VerbsProbe.AUTO, LOG).probe(DEVICES, NAMES) == {}


def test_without_devices_nothing_is_started(pyverbs):
    assert DeepProbe(VerbsProbe.ALWAYS, LOG).probe([], {}) == {}
    assert pyverbs.asked == []


def test_who_does_not_want_it_does_not_get_it(pyverbs):
    assert DeepProbe(VerbsProbe.NEVER, LOG).probe(DEVICES, NAMES) == {}
    assert pyverbs.asked == []


@pytest.mark.parametrize(("wish", "said"), [(VerbsProbe.AUTO, 0), (VerbsProbe.ALWAYS, 1)])
def test_that_pyverbs_is_missing_is_said_once_to_who_asked_for_it(wish, said, pyverbs, caplog):
    pyverbs.installed = False
    probe = DeepProbe(wish, LOG)
    for _ in range(3):
        assert probe.probe(DEVICES, NAMES) == {}
    assert len(caplog.messages) == said
    assert all("pyverbs is not installed" in message for message in caplog.messages)


def test_a_recorded_tree_is_never_asked(looking, pyverbs, tmp_path):
    connectx.connectx5_roce(tmp_path)
    backend = looking(tmp_path)
    assert backend.probe(backend.discover()) == {}
    assert pyverbs.asked == []


def test_a_container_asks_where_it_has_the_nodes_at_their_own_place(looking, pyverbs, tmp_path, monkeypatch):
    connectx.connectx5_roce(tmp_path)
    monkeypatch.setattr(backend_module, "OWN_NODES", str(tmp_path / "dev" / "infiniband"))
    backend = looking(tmp_path)
    backend.probe(backend.discover())
    assert pyverbs.asked == [["mlx5_0", "mlx5_1"]]
