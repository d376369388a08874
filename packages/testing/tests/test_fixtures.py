"""A backend on a machine of files: its arguments, and its end with the test."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.fixtures import BackendFixture, by_id
from devhost_testing.trees import Tree

from devhost.backend import AllocateRequest, Backend, Device, Edits, Event, option


@dataclass(frozen=True)
class Wishes:
    prefix: str = option("card", "what ids begin with")


class Cards(Backend):
    """Files in ``/dev``; stores the events it gets."""

    name = "cards"
    Options = Wishes

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.heard: list[str] = []

    def notice(self, event: Event) -> None:
        self.heard.append(event.sys_path)

    def discover(self) -> Any:
        for node in sorted((self.context.root / "dev").iterdir()):
            yield Device(f"{self.options.prefix}-{node.name}")

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits()


class Others(Cards):
    """Another class."""


class Deaf(Backend):
    """Gets no events."""

    name = "deaf"

    def discover(self) -> Any:
        return [Device("only")]

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    made.node("/dev/a")
    return made


def test_a_backend_is_made_with_all_attributes_wanted_and_nothing_held(tree: Tree) -> None:
    with BackendFixture(Cards) as looking:
        for machine in (tree, tree.root):
            backend = looking(machine)
            assert list(by_id(backend)) == ["card-a"]
            assert backend.context.root == tree.root
            assert list(backend.context.wanted) == ["*"]
            assert backend.context.held() == frozenset()
            assert backend.context.log.name == "devhost.backend.cards"


def test_each_call_makes_a_new_backend_with_its_own_arguments(tree: Tree) -> None:
    with BackendFixture(Cards) as looking:
        first = looking(tree)
        other = looking(tree, Wishes("x"), ("serial",), lambda: None, kind=Others)
        assert list(by_id(other)) == ["x-a"]
        assert (list(other.context.wanted), other.context.held()) == (["serial"], None)
        assert isinstance(other, Others)
        assert other is not first


def test_events_are_sent_before_the_scan_to_backends_with_notice(tree: Tree) -> None:
    with BackendFixture(Cards) as looking:
        backend = looking(tree)
        assert list(by_id(backend, Event(sys_path="/sys/x"), Event(sys_path="/sys/y"))) == ["card-a"]
        assert backend.heard == ["/sys/x", "/sys/y"]
    with BackendFixture(Deaf) as deaf:
        assert list(by_id(deaf(tree), Event(sys_path="/sys/x"))) == ["only"]


async def test_everything_that_backends_started_is_stopped(tree: Tree) -> None:
    with BackendFixture(Cards) as looking:
        thread = await looking(tree).context.run_blocking(threading.current_thread)
        assert thread is not threading.current_thread()
    thread.join(60)
    assert not thread.is_alive()
