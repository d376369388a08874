"""The verdicts of AMD's device metrics exporter, over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import gpu_amd
import grpc
import pytest
from devhost_gpu.amd import health as exporter
from devhost_gpu.environment import Environment
from devhost_testing.fixtures import BackendFixture
from gpu_setup import gpu_with


def field(number: int, text: str) -> bytes:
    """A field that holds text, shorter than 128 bytes."""
    return bytes((number << 3 | 2, len(text))) + text.encode()


def state(device: str, health: str) -> bytes:
    """One ``GPUState``: id, UUID, health, workload and the device's id."""
    inner = field(1, "0") + field(2, "ff") + field(3, health) + field(4, "pod") + field(5, device)
    return bytes((1 << 3 | 2, len(inner))) + inner


@contextmanager
def serving(socket: Path, answer: bytes) -> Iterator[None]:
    """An exporter that listens on a socket."""
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        listing = grpc.unary_unary_rpc_method_handler(lambda request, context: answer)
        service = exporter.METHOD.split("/")[1]
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"List": listing}),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait(60)


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A socket whose path is short enough below a test's directory."""
    return tmp_path / "s"


NEAR = gpu_with(Environment(exporter_socket="/s"))


def test_the_exporters_verdict_counts_until_it_changes(
    tmp_path: Path, looking: BackendFixture, short: Path
) -> None:
    backend = looking(gpu_amd.mi210(tmp_path), kind=NEAR)
    devices = backend.discover()
    answer = (
        state("0000:63:00.0", "UNHEALTHY") + state("0000:43:00.0", "healthy") + state("0000:e3:00.0", "?")
    )
    with serving(short, answer):
        assert {name: health.reason for name, health in backend.probe(devices).items()} == {
            "0000:63:00.0": "the device metrics exporter reports that it is unhealthy"
        }
    with serving(short, state("0000:63:00.0", "healthy")):
        assert backend.probe(devices) == {}


def test_without_an_exporter_there_are_no_verdicts(short: Path) -> None:
    assert exporter.exporter_verdicts(short, 5.0) == {}


def test_an_exporter_without_a_usable_answer_is_logged_once_and_harms_no_card(
    tmp_path: Path, looking: BackendFixture, short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = looking(gpu_amd.mi210(tmp_path), kind=NEAR)
    devices = backend.discover()
    with serving(short, b"\x0a\x7f"):
        assert backend.probe(devices) == backend.probe(devices) == {}
    assert caplog.messages == ["asking the device metrics exporter failed: its answer cannot be read"]


@pytest.mark.parametrize("answer", [b"\x0a", b"\x0b\x00", b"\xff" * 11, b"\x0d\x01", b"\x0a\x03\x2a\x01\xff"])
def test_no_answer_is_too_odd(short: Path, answer: bytes) -> None:
    with serving(short, answer):
        try:
            assert exporter.exporter_verdicts(short, 5.0) == {}
        except exporter.NoAnswerError as error:
            assert "\n" not in str(error)


def test_unknown_fields_are_passed_over(short: Path) -> None:
    answer = bytes((9 << 3, 5)) + bytes((8 << 3 | 5, 1, 2, 3, 4)) + state("0000:63:00.0", "healthy")
    with serving(short, answer):
        assert exporter.exporter_verdicts(short, 5.0) == {"0000:63:00.0": "healthy"}
