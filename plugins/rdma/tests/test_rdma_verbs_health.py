"""The deep probe in service: whom it asks, what it makes of the answers, and how often it speaks of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pytest
import rdma_connectx as connectx
from devhost_rdma import Rdma
from devhost_rdma.options import RdmaOptions, VerbsProbe
from devhost_rdma.verbs import Verbs, VerbsHealth, Verdict

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
        self.answers: Mapping[str, Verdict] = {}

    @property
    def is_installed(self) -> bool:
        return self.installed

    def probe(self, names: Sequence[str]) -> Mapping[str, Verdict]:
        self.asked.append(list(names))
        return self.answers


@pytest.fixture
def pyverbs() -> FakeVerbs:
    return FakeVerbs()


def test_the_main_rdma_device_of_each_device_that_is_here_is_asked(pyverbs):
    pyverbs.answers = {"mlx5_0": Verdict(HEALTHY), "mlx5_1": Verdict(unhealthy("cannot be opened: x"))}
    found = VerbsHealth(VerbsProbe.AUTO, LOG, pyverbs).probe(DEVICES, NAMES)
    assert pyverbs.asked == [["mlx5_0", "mlx5_1"]]
    assert found == {"0000:3b:00.0": HEALTHY, "0000:3b:00.1": unhealthy("cannot be opened: x")}


def test_nothing_learnt_says_nothing_of_a_device_and_is_logged_once(pyverbs, caplog):
    caplog.set_level(logging.INFO)
    pyverbs.answers = {"mlx5_0": Verdict(None, note="libibverbs does not know it")}
    probe = VerbsHealth(VerbsProbe.AUTO, LOG, pyverbs)
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
    assert VerbsHealth(VerbsProbe.AUTO, LOG, pyverbs).probe(DEVICES, NAMES) == {}


def test_without_devices_nothing_is_started(pyverbs):
    assert VerbsHealth(VerbsProbe.ALWAYS, LOG, pyverbs).probe([], {}) == {}
    assert pyverbs.asked == []


def test_who_does_not_want_it_does_not_get_it(pyverbs):
    assert VerbsHealth(VerbsProbe.NEVER, LOG, pyverbs).probe(DEVICES, NAMES) == {}
    assert pyverbs.asked == []


@pytest.mark.parametrize(("wish", "said"), [(VerbsProbe.AUTO, 0), (VerbsProbe.ALWAYS, 1)])
def test_that_pyverbs_is_missing_is_said_once_to_who_asked_for_it(wish, said, pyverbs, caplog):
    pyverbs.installed = False
    probe = VerbsHealth(wish, LOG, pyverbs)
    for _ in range(3):
        assert probe.probe(DEVICES, NAMES) == {}
    assert len(caplog.messages) == said
    assert all("pyverbs is not installed" in message for message in caplog.messages)


def test_a_recorded_tree_is_never_asked(pyverbs, tmp_path):
    connectx.connectx5_roce(tmp_path)
    backend = Rdma(RdmaOptions(), ServiceContext("rdma", tmp_path, ("*",)), verbs=pyverbs)
    assert backend.probe(backend.discover()) == {}
    assert pyverbs.asked == []


def test_a_container_asks_where_it_has_the_nodes_at_their_own_place(pyverbs, tmp_path):
    connectx.connectx5_roce(tmp_path)
    context = ServiceContext("rdma", tmp_path, ("*",))
    own_nodes = str(tmp_path / "dev" / "infiniband")
    backend = Rdma(RdmaOptions(), context, verbs=pyverbs, own_nodes=own_nodes)
    backend.probe(backend.discover())
    assert pyverbs.asked == [["mlx5_0", "mlx5_1"]]
