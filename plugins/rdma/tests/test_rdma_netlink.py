"""Netlink messages are read as the kernel writes them, and nothing malformed or missing does any harm."""

from __future__ import annotations

import errno
import struct
import sys
from pathlib import Path

import pytest
from devhost_rdma import netlink, nl_socket
from devhost_rdma.nl_message import (
    DONE,
    ERROR,
    Message,
    attribute,
    attributes,
    messages,
    number,
    request,
    text,
    u32,
)
from hypothesis import given
from hypothesis import strategies as st

NLDEV = 5 << 10
GET, SYS_GET, RES_GET, CHARDEV, MONITOR = (NLDEV | command for command in (1, 6, 9, 15, 28))

little_endian = pytest.mark.skipif(sys.byteorder != "little", reason="the recorded bytes are little-endian")


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


def summary(name: bytes, **counts: int) -> bytes:
    entries = b"".join(
        attribute(16 | 0x8000, attribute(17, label.encode() + b"\0") + attribute(18, u64(count)))
        for label, count in counts.items()
    )
    return attribute(1, u32(0)) + attribute(2, name) + attribute(15 | 0x8000, entries)


# --- messages as bytes


@little_endian
def test_a_request_is_laid_out_as_netlink_h_says() -> None:
    assert request(0x1406, 7).hex() == "10000000061401000700000000000000"
    assert request(0x1401, 1, b"\1\2\3\4", dump=True).hex() == ("1400000001140103010000000000000001020304")


@little_endian
def test_an_attribute_is_padded_and_its_length_is_not() -> None:
    assert attribute(2, b"rxe0\0").hex() == "090002007278653000000000"


def test_several_messages_of_one_datagram_are_all_read() -> None:
    datagram = request(GET, 1, attribute(2, b"a\0")) + request(DONE, 1, struct.pack("=i", 0))
    assert [message.kind for message in messages(datagram)] == [GET, DONE]


def test_flags_in_an_attributes_type_are_not_part_of_it() -> None:
    assert list(attributes(attribute(15 | 0x8000, b"x"))) == [(15, b"x")]


def test_an_error_carries_its_errno() -> None:
    assert Message(ERROR, 1, struct.pack("=i", -errno.EPERM)).errno == errno.EPERM
    assert Message(ERROR, 1, struct.pack("=i", 0)).errno == 0
    assert Message(ERROR, 1, b"").errno == 0
    assert Message(GET, 1, struct.pack("=i", -errno.EPERM)).errno == 0


def test_an_attribute_longer_than_its_length_field_is_refused() -> None:
    with pytest.raises(ValueError, match="65540 bytes"):
        attribute(1, bytes(65536))


def test_numbers_and_texts_that_are_none_are_told_from_those_that_are() -> None:
    assert [number(v) for v in (b"\1", b"\0\0", u32(70000), u64(1 << 40))] == [1, 0, 70000, 1 << 40]
    assert number(None) is number(b"") is number(b"\1\2\3") is None
    assert text(b"mlx5_0\0garbage") == "mlx5_0"
    assert text(None) == text(b"\xff\xfe") == text(b"a\x1b[31m") == ""


@given(st.binary(max_size=200))
def test_any_bytes_at_all_end_the_reading_and_raise_nothing(data: bytes) -> None:
    assert sum(len(message.payload) + 16 for message in messages(data)) <= len(data)
    assert sum(len(value) + 4 for _, value in attributes(data)) <= len(data)
    message = Message(GET, 1, data)
    netlink.parse_device(message)
    netlink.parse_summary(Message(RES_GET, 1, data))
    netlink.is_notification(data)


@given(st.integers(0, len(rxe())))
def test_a_message_cut_anywhere_gives_a_device_or_none(end: int) -> None:
    device = netlink.parse_device(Message(GET, 1, rxe()[:end]))
    assert device is None or device.name == "rxe0"


# --- what the RDMA core says


def test_a_device_is_read_with_its_guids_as_sysfs_writes_them() -> None:
    assert netlink.parse_device(Message(GET, 1, rxe())) == netlink.RdmaDevice(
        index=0,
        name="rxe0",
        ports=1,
        firmware="",
        node_guid="60e9:2cff:feac:7247",
        system_guid="60e9:2cff:feac:7247",
        node_type=1,
        protocol="roce",
        smi=False,
        parent="",
    )


def test_a_companion_for_management_datagrams_names_its_parent() -> None:
    data = attribute(1, u32(4)) + attribute(2, b"smi1\0") + attribute(99, b"\1") + attribute(100, b"mlx5_0\0")
    device = netlink.parse_device(Message(GET, 1, data))
    assert device is not None
    assert (device.smi, device.parent, device.node_guid) == (True, "mlx5_0", "")


def test_a_message_that_names_no_device_is_none() -> None:
    assert netlink.parse_device(Message(GET, 1, attribute(1, u32(0)))) is None
    assert netlink.parse_device(Message(GET, 1, rxe(b"\0"))) is None
    assert netlink.parse_device(Message(SYS_GET, 1, rxe())) is None


def test_only_notifications_of_the_rdma_core_count_as_such() -> None:
    assert netlink.is_notification(request(MONITOR, 0, rxe() + attribute(102, b"\0")))
    assert not netlink.is_notification(request(GET, 0, rxe()))
    assert not netlink.is_notification(b"")


class Kernel:
    """Answers questions as the RDMA core does."""

    def __init__(self) -> None:
        self.answers: dict[int, list[bytes] | OSError] = {}
        self.asked: list[tuple[int, bytes]] = []

    def ask(
        self, protocol: int, kind: int, payload: bytes = b"", *, dump: bool = False, timeout: float
    ) -> list[Message]:
        assert protocol == 20
        assert timeout == netlink.TIMEOUT
        self.asked.append((kind, payload))
        answer = self.answers.get(kind, OSError(errno.EINVAL, "Invalid argument"))
        if isinstance(answer, OSError):
            raise answer
        return [Message(kind, 1, data) for data in answer]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kernel:
    """An RDMA core that is loaded, with ib_uverbs."""
    found = Kernel()
    monkeypatch.setattr(netlink, "ask", found.ask)
    monkeypatch.setattr(netlink, "CORE", str(tmp_path))
    monkeypatch.setattr(netlink, "VERBS", str(tmp_path))
    return found


@pytest.mark.parametrize(("value", "mode"), [(0, "exclusive"), (1, "shared"), (7, None)])
def test_the_namespace_mode_is_told(kernel: Kernel, value: int, mode: str | None) -> None:
    kernel.answers[SYS_GET] = [attribute(66, bytes([value]))]
    assert netlink.netns_mode() == mode


def test_a_kernel_that_does_not_know_the_question_leaves_everything_unknown(kernel: Kernel) -> None:
    assert netlink.netns_mode() is None
    assert netlink.devices() == []
    assert netlink.in_use("rxe0") is None
    assert netlink.software_driver(0) == ""
    assert len(kernel.asked) == 4


@pytest.mark.parametrize(
    "error", [TimeoutError("late"), PermissionError(errno.EPERM, "no"), OSError(errno.EPROTONOSUPPORT, "no")]
)
def test_no_answer_no_permission_and_no_protocol_are_unknown(kernel: Kernel, error: OSError) -> None:
    kernel.answers = {SYS_GET: error, GET: error, RES_GET: error}
    assert (netlink.netns_mode(), netlink.devices(), netlink.in_use("rxe0")) == (None, [], None)


def test_all_devices_are_listed_and_nonsense_between_them_is_left_out(kernel: Kernel) -> None:
    kernel.answers[GET] = [rxe(), b"", rxe(b"rxe1\0")]
    assert [device.name for device in netlink.devices()] == ["rxe0", "rxe1"]


def test_what_a_device_holds_is_counted_by_kind(kernel: Kernel) -> None:
    kernel.answers[RES_GET] = [summary(b"siw0\0", pd=0), summary(b"rxe0\0", pd=1, qp=2, ctx=0)]
    assert netlink.in_use("rxe0") == {"pd": 1, "qp": 2, "ctx": 0}
    assert netlink.in_use("mlx5_0") is None


def test_the_driver_of_a_software_device_is_told_and_no_others(kernel: Kernel) -> None:
    for identity, module in ((14, "rdma_rxe"), (18, "siw"), (1, "")):
        kernel.answers[CHARDEV] = [attribute(70, b"uverbs0\0") + attribute(73, u64(identity))]
        assert netlink.software_driver(3) == module
    assert kernel.asked[-1] == (CHARDEV, attribute(1, u32(3)) + attribute(69, b"uverbs\0"))


def test_without_the_rdma_core_no_socket_is_opened_which_would_load_it(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(netlink, "CORE", str(tmp_path / "none"))
    assert (netlink.netns_mode(), netlink.devices(), netlink.in_use("rxe0")) == (None, [], None)
    assert netlink.software_driver(0) == ""
    assert kernel.asked == []


def test_without_ib_uverbs_nobody_asks_for_its_nodes_which_would_load_it(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(netlink, "VERBS", str(tmp_path / "none"))
    assert netlink.software_driver(0) == ""
    assert kernel.asked == []


# --- asking over a socket


class Line:
    """Stands for a netlink socket: hands out prepared datagrams, then says nothing more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.datagrams: list[tuple[bytes, tuple[int, int]]] = []
        self.sent: list[bytes] = []
        monkeypatch.setattr(nl_socket.socket, "socket", lambda *_: self)

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
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(monkeypatch)


KERNEL = (0, 0)


def test_a_dump_is_read_to_its_end_over_several_datagrams(line: Line) -> None:
    line.datagrams = [
        (request(GET, 1, b"one_") + request(GET, 1, b"two_"), KERNEL),
        (request(GET, 1, b"more") + request(DONE, 1, u32(0)), KERNEL),
    ]
    found = nl_socket.ask(20, GET, dump=True, timeout=1.0)
    assert [message.payload for message in found] == [b"one_", b"two_", b"more"]


def test_an_empty_dump_is_an_empty_answer(line: Line) -> None:
    line.datagrams = [(request(DONE, 1, u32(0)), KERNEL)]
    assert nl_socket.ask(20, GET, dump=True, timeout=1.0) == []


def test_a_refusal_is_an_oserror_with_its_errno(line: Line) -> None:
    line.datagrams = [(request(ERROR, 1, struct.pack("=i", -errno.EINVAL)), KERNEL)]
    with pytest.raises(OSError) as caught:
        nl_socket.ask(20, GET, timeout=1.0)
    assert caught.value.errno == errno.EINVAL


def test_answers_of_other_processes_and_to_other_questions_are_not_taken(line: Line) -> None:
    line.datagrams = [
        (request(GET, 1, b"fake"), (4711, 0)),
        (request(GET, 9, b"old_"), KERNEL),
        (request(GET, 1, b"true"), KERNEL),
    ]
    assert [message.payload for message in nl_socket.ask(20, GET, timeout=1.0)] == [b"true"]


def test_silence_is_a_timeout(line: Line) -> None:
    with pytest.raises(TimeoutError):
        nl_socket.ask(20, GET, timeout=1.0)


def test_an_answer_that_never_ends_is_cut_off(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "recvfrom", lambda _: (request(GET, 1) * 1000, KERNEL))
    assert len(nl_socket.ask(20, GET, dump=True, timeout=60.0)) < nl_socket.MAX_ANSWER + 1000


def test_the_real_kernel_answers_a_dump_of_links() -> None:
    """The same code against a protocol that every kernel has: RTM_GETLINK lists the loopback device."""
    try:
        found = nl_socket.ask(nl_socket.ROUTE, 18, bytes(16), dump=True, timeout=10.0)
    except OSError as error:
        pytest.skip(f"no rtnetlink here: {error}")
    names = [text(dict(attributes(message.payload[16:])).get(3)) for message in found]
    assert names


def test_the_real_kernel_refuses_a_question_it_does_not_know() -> None:
    try:
        nl_socket.ask(nl_socket.ROUTE, 18, bytes(16), dump=True, timeout=10.0)
    except OSError as error:
        pytest.skip(f"no rtnetlink here: {error}")
    with pytest.raises(OSError):
        nl_socket.ask(nl_socket.ROUTE, 1023, timeout=10.0)


def test_this_machine_gives_an_answer_whatever_it_has() -> None:
    assert netlink.netns_mode() in ("shared", "exclusive", None)
    if not Path(netlink.CORE).is_dir():
        assert netlink.devices() == []
        assert netlink.netns_mode() is None


def test_nothing_of_pyroute2_is_imported() -> None:
    assert "pyroute2" not in sys.modules
