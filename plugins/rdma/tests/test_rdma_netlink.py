"""Netlink messages are read as the kernel writes them, and nothing malformed or missing does any harm."""

from __future__ import annotations

import errno
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from devhost_rdma import netlink
from devhost_rdma.netlink import PORT, Notifications, RdmaCore
from hypothesis import given
from hypothesis import strategies as st
from rdma_messages import attribute, message

from devhost.backend import netlink as nl
from devhost.backend.netlink import ERROR, Message, attributes, messages, number, request, text

NLDEV = 5 << 10
GET, SYS_GET, MONITOR = (NLDEV | command for command in (1, 6, 28))

little_endian = pytest.mark.skipif(sys.byteorder != "little", reason="the recorded bytes are little-endian")


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def u64(value: int) -> bytes:
    return struct.pack("=Q", value)


def rxe(name: bytes = b"rxe0\0") -> bytes:
    """What kernel 6.12 sends for a software device, attribute by attribute."""
    return b"".join(
        (
            attribute(1, u32(0)),
            attribute(2, name),
            attribute(3, u32(1)),
            attribute(4, u64(0x1223C76)),
            attribute(6, u64(0x60E92CFFFEAC7247)),
            attribute(7, u64(0x60E92CFFFEAC7247)),
            attribute(14, b"\x01"),
            attribute(67, b"roce\0"),
        )
    )


# --- messages as bytes


@little_endian
def test_a_request_has_the_layout_of_netlink_h() -> None:
    assert request(0x1406, 7).hex() == "10000000061401000700000000000000"


def test_all_messages_of_a_datagram_are_read() -> None:
    datagram = message(GET, 1, attribute(2, b"a\0")) + message(3, 1)
    assert [found.kind for found in messages(datagram)] == [GET, 3]


def test_flags_in_the_type_of_an_attribute_are_ignored() -> None:
    assert list(attributes(attribute(15 | 0x8000, b"x"))) == [(15, b"x")]


def test_an_error_carries_its_errno() -> None:
    assert Message(ERROR, 1, struct.pack("=i", -errno.EPERM)).errno == errno.EPERM
    assert Message(ERROR, 1, struct.pack("=i", 0)).errno == 0
    assert Message(ERROR, 1, b"").errno == 0
    assert Message(GET, 1, struct.pack("=i", -errno.EPERM)).errno == 0


def test_invalid_numbers_and_texts_are_empty() -> None:
    assert [number(v) for v in (b"\1", b"\0\0", u32(70000), u64(1 << 40))] == [1, 0, 70000, 1 << 40]
    assert number(None) is number(b"") is number(b"\1\2\3") is None
    assert text(b"mlx5_0\0garbage") == "mlx5_0"
    assert text(None) == text(b"\xff\xfe") == text(b"a\x1b[31m") == ""


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing(data: bytes) -> None:
    assert sum(len(found.payload) + 16 for found in messages(data)) <= len(data)
    assert sum(len(value) + 4 for _, value in attributes(data)) <= len(data)
    list(Notifications(RdmaCore()).events(data))


# --- the RDMA core


def test_only_notifications_of_the_rdma_core_count_as_such() -> None:
    source = Notifications(RdmaCore())
    assert list(source.events(message(MONITOR, 0, rxe() + attribute(102, b"\0")))) == [PORT]
    assert not source.events(message(GET, 0, rxe()))
    assert not source.events(b"")


class Kernel:
    """Answers questions as the RDMA core does."""

    def __init__(self, directory: Path) -> None:
        self.core = RdmaCore(str(directory), self.ask)
        self.answers: dict[int, bytes | OSError | None] = {}
        self.asked: list[int] = []

    def ask(self, protocol: int, kind: int, *, timeout: float) -> Message | None:
        assert protocol == 20
        assert timeout == netlink.TIMEOUT
        self.asked.append(kind)
        answer = self.answers.get(kind, OSError(errno.EINVAL, "Invalid argument"))
        if isinstance(answer, OSError):
            raise answer
        return None if answer is None else Message(kind, 1, answer)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """An RDMA core that is loaded."""
    return Kernel(tmp_path)


@pytest.mark.parametrize(("value", "mode"), [(0, "exclusive"), (1, "shared"), (7, None)])
def test_the_namespace_mode_is_decoded(kernel: Kernel, value: int, mode: str | None) -> None:
    kernel.answers[SYS_GET] = attribute(66, bytes([value]))
    assert kernel.core.netns_mode() == mode


def test_a_kernel_without_the_request_leaves_the_mode_unknown(kernel: Kernel) -> None:
    assert kernel.core.netns_mode() is None
    assert kernel.asked == [SYS_GET]


@pytest.mark.parametrize(
    "error", [TimeoutError("late"), PermissionError(errno.EPERM, "no"), OSError(errno.EPROTONOSUPPORT, "no")]
)
def test_without_answer_permission_or_protocol_the_mode_is_unknown(kernel: Kernel, error: OSError) -> None:
    kernel.answers = {SYS_GET: error}
    assert kernel.core.netns_mode() is None


def test_without_the_rdma_core_no_socket_is_opened(kernel: Kernel, tmp_path: Path) -> None:
    assert RdmaCore(str(tmp_path / "none"), kernel.ask).netns_mode() is None
    assert kernel.asked == []


# --- asking over a socket


class Line:
    """Represents a netlink socket: it returns prepared datagrams, then times out."""

    def __init__(self) -> None:
        self.datagrams: list[tuple[bytes, tuple[int, int]]] = []
        self.sent: list[bytes] = []

    def ask(self) -> Message | None:
        """Asks over this line."""
        return nl.ask(20, GET, timeout=1.0, connect=lambda _: self)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def settimeout(self, timeout: float) -> None:
        assert timeout > 0

    def bind(self, address: tuple[int, int]) -> None:
        assert address == (0, 0)

    def sendto(self, data: bytes, address: tuple[int, int]) -> None:
        self.sent.append(data)

    def recvfrom(self, size: int) -> tuple[bytes, tuple[int, int]]:
        if not self.datagrams:
            raise TimeoutError
        return self.datagrams.pop(0)


@pytest.fixture
def line() -> Line:
    return Line()


KERNEL = (0, 0)


def test_a_refusal_is_an_oserror_with_its_errno(line: Line) -> None:
    line.datagrams = [(message(ERROR, 1, struct.pack("=i", -errno.EINVAL)), KERNEL)]
    with pytest.raises(OSError) as caught:
        line.ask()
    assert caught.value.errno == errno.EINVAL


def test_answers_from_other_processes_and_to_other_requests_are_ignored(line: Line) -> None:
    line.datagrams = [
        (message(GET, 1, b"fake"), (4711, 0)),
        (message(GET, 9, b"old_"), KERNEL),
        (message(GET, 1, b"true"), KERNEL),
    ]
    assert line.ask() == Message(GET, 1, b"true")


def test_an_acknowledgement_is_not_an_answer(line: Line) -> None:
    line.datagrams = [(message(ERROR, 1, struct.pack("=i", 0)), KERNEL)]
    assert line.ask() is None


def test_an_empty_answer_leaves_the_mode_unknown(kernel: Kernel) -> None:
    kernel.answers[SYS_GET] = None
    assert kernel.core.netns_mode() is None
    kernel.answers[SYS_GET] = b""
    assert kernel.core.netns_mode() is None


def test_no_answer_is_a_timeout(line: Line) -> None:
    with pytest.raises(TimeoutError):
        line.ask()


def test_the_real_kernel_refuses_an_unknown_request() -> None:
    with pytest.raises(OSError):
        nl.ask(nl.ROUTE, 1023, timeout=120)


def test_every_machine_gives_a_valid_mode() -> None:
    assert RdmaCore().netns_mode() in ("shared", "exclusive", None)
    if not Path(netlink.CORE).is_dir():
        assert RdmaCore().netns_mode() is None


def test_pyroute2_is_not_imported() -> None:
    script = "import devhost_rdma as rdma, sys; rdma.devhost_backends(); sys.exit('pyroute2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == 0
