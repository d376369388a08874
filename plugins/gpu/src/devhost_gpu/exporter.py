"""What AMD's device metrics exporter says of the health of cards, where it runs on the node.

It is asked as AMD's own device plugin asks it: ``List`` of ``metricssvc.MetricsService`` over its socket,
with an empty request. Of the answer two fields matter, so it is read by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SOCKET = "/var/lib/amd-metrics-exporter/amdgpu_device_metrics_exporter_grpc.socket"
"""Where the exporter listens."""

METHOD = "/metricssvc.MetricsService/List"

DEADLINE = 5.0
"""Seconds the exporter has to answer."""

_STATE, _HEALTH, _DEVICE = 1, 3, 5
"""Numbers of the fields: ``GPUStateResponse.GPUState``, ``GPUState.Health``, ``GPUState.Device``."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Kinds of field (Protocol Buffers, "Encoding")."""


class NoAnswerError(Exception):
    """The exporter is there and says nothing that can be used; the text says why."""


def verdicts(root: Path) -> dict[str, str]:
    """What it says of each card, ``healthy`` or another word, by PCI address or name of the partition.

    Empty where there is no exporter.

    Raises:
        NoAnswerError: there is one, and it does not answer in time, or not as it should.
    """
    socket = root / SOCKET.lstrip("/")
    if not socket.is_socket():
        return {}
    import grpc

    try:
        with grpc.insecure_channel(f"unix:{socket}", options=(("grpc.enable_http_proxy", 0),)) as channel:
            answer = channel.unary_unary(METHOD, _as_it_is, _as_it_is)(b"", timeout=DEADLINE)
    except grpc.RpcError as error:
        status = getattr(error, "code", lambda: None)()
        raise NoAnswerError(f"it answered {getattr(status, 'name', type(error).__name__)}") from error
    try:
        return dict(_states(answer))
    except ValueError as error:
        raise NoAnswerError("its answer cannot be read") from error


def _as_it_is(message: bytes) -> bytes:
    return message


def _states(answer: bytes) -> Iterator[tuple[str, str]]:
    for number, state in _fields(answer):
        if number == _STATE:
            fields = dict(_fields(state))
            device, health = (fields.get(one, b"").decode() for one in (_DEVICE, _HEALTH))
            if device and health:
                yield device.lower(), health.lower()


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that hold bytes.

    Raises:
        ValueError: it is no message.
    """
    rest = message
    while rest:
        key, rest = _varint(rest)
        kind = key & 7
        if kind == _VARINT:
            _, rest = _varint(rest)
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32):
            raise ValueError("no such kind of field")
        length = 8 if kind == _FIXED64 else 4
        if kind == _BYTES:
            length, rest = _varint(rest)
        if length > len(rest):
            raise ValueError("it ends within a field")
        if kind == _BYTES:
            yield key >> 3, rest[:length]
        rest = rest[length:]


def _varint(data: bytes) -> tuple[int, bytes]:
    number = 0
    for index, byte in enumerate(data[:10]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, data[index + 1 :]
    raise ValueError("it ends within a number")
