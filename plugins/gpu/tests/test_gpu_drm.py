"""Whether drivers answer: what their errors mean, cards that hang, cards that are wedged."""

from __future__ import annotations

import errno
import struct
import threading
from pathlib import Path

import gpu_amd
import gpu_intel
import pytest
from devhost_gpu import Gpu, drm
from devhost_gpu.drm import ThreadedCalls
from devhost_gpu.environment import Environment, Timings
from devhost_testing.fixtures import BackendFixture, by_id
from gpu_setup import gpu_with

from devhost.backend import Event

ARC = "0000:03:00.0"
ARC_PATH = f"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/{ARC}"


@pytest.mark.skipif(struct.calcsize("P") != 8, reason="the number is that of machines with 64 bits")
def test_the_request_has_the_number_that_the_kernel_gave_it() -> None:
    assert drm.VERSION == 0xC0406400
    assert drm.I915_THROTTLE == 0x6458


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.ECANCELED, "is wedged"),
        (errno.EIO, "is wedged"),
        (errno.ENODEV, "is gone"),
        (errno.EACCES, ""),
        (errno.ENOTTY, ""),
    ],
)
def test_only_some_refusals_are_about_the_card(number: int, word: str) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no")

    found = drm.refusal("/dev/null", "xe", refuse)
    assert found.startswith(word)
    assert bool(found) is bool(word)


def test_i915_is_asked_for_more_than_its_version() -> None:
    asked = []
    assert drm.refusal("/dev/null", "i915", lambda _, number, *rest: asked.append(number)) == ""
    assert asked == [drm.VERSION, drm.I915_THROTTLE]


def test_a_missing_node_or_a_regular_file_is_not_an_error_of_the_card(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    assert drm.refusal(str(tmp_path / "plain"), "xe") == ""
    assert drm.refusal(str(tmp_path / "absent"), "xe") == ""


def test_a_call_that_hangs_delays_no_other_and_is_not_repeated() -> None:
    never, calls = threading.Event(), []

    def hang() -> str:
        calls.append(1)
        never.wait(60)
        return "late"

    calls_ = ThreadedCalls()
    while calls_.run({"hung": hang, "quick": lambda: "here"}, 0.05) != {"quick": "here"}:
        pass  # a busy machine
    assert calls_.run({"hung": hang}, 0.05) == {}
    assert len(calls) == 1
    never.set()
    assert calls_.run({"hung": hang}, 60) == {"hung": "late"}


@pytest.fixture
def wedged() -> set[str]:
    """Names of render nodes that are wedged."""
    return set()


@pytest.fixture
def live(wedged: set[str]) -> type[Gpu]:
    """The backend on a tree that counts as a running machine."""

    def ask(node: str, driver: str) -> str:
        return "is wedged" if Path(node).name in wedged else ""

    patient = Timings(driver_answers=60.0, wedged_answers=60.0)
    return gpu_with(Environment(patient, is_live=lambda root: True, ask_driver=ask))


def test_a_wedged_card_is_found_by_a_probe_and_heals(
    tmp_path: Path, looking: BackendFixture, wedged: set[str], live: type[Gpu]
) -> None:
    backend = looking(gpu_intel.arc(tmp_path), kind=live)
    devices = backend.discover()
    wedged.add("renderD129")
    assert {name: health.reason for name, health in backend.probe(devices).items()} == {ARC: "it is wedged"}
    wedged.clear()
    assert backend.probe(devices) == {}


def test_a_card_whose_driver_reports_a_change_is_checked_until_it_is_healthy(
    tmp_path: Path, looking: BackendFixture, wedged: set[str], live: type[Gpu]
) -> None:
    backend = looking(gpu_intel.arc(tmp_path), kind=live)
    assert by_id(backend)[ARC].health.healthy
    wedged.add("renderD129")
    assert by_id(backend)[ARC].health.healthy, "nobody has said anything yet"
    devices = by_id(backend, Event("drm", "change", f"{ARC_PATH}/drm/card1"))
    assert devices[ARC].health.reason == "it is wedged"
    assert devices["0000:00:02.0"].health.healthy
    assert not by_id(backend)[ARC].health.healthy
    wedged.clear()
    assert by_id(backend)[ARC].health.healthy


def test_a_wedged_gpu_takes_its_partitions_with_it(
    tmp_path: Path, looking: BackendFixture, wedged: set[str], live: type[Gpu]
) -> None:
    backend = looking(gpu_amd.mi300x(tmp_path, "CPX", "NPS4", count=2), kind=live)
    devices = by_id(backend)
    wedged.add("renderD128")
    path = "/sys/devices/pci0000:0a/0000:0a:01.1/0000:0c:00.0"
    devices = by_id(backend, Event("drm", "change", f"{path}/drm/card0"))
    assert sum(not device.health.healthy for device in devices.values()) == 8


def test_a_card_that_sleeps_is_not_woken_up(
    tmp_path: Path, looking: BackendFixture, wedged: set[str], live: type[Gpu]
) -> None:
    tree = gpu_intel.arc(tmp_path)
    tree.file(f"{ARC_PATH}/power/runtime_status", "suspended")
    wedged.add("renderD129")
    backend = looking(tree, kind=live)
    assert backend.probe(backend.discover()) == {}
