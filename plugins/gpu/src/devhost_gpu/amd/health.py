"""What makes an AMD card unhealthy: error counters, its metrics exporter, a driver that does not answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from devhost.backend import Cause, Context, Health, unhealthy
from devhost.backend.incident import Incident
from devhost.backend.sysfs import Sysfs
from devhost_gpu.discovery import Adapter
from devhost_gpu.drm import DrmHealth
from devhost_gpu.environment import STANDARD, Environment
from devhost_gpu.options import GpuOptions

_COUNTS = re.compile(r"(\w{1,16})_err_count")
_UNCORRECTABLE = re.compile(r"ue:\s*(\d{1,18})")


def uncorrectable(sysfs: Sysfs, path: str) -> dict[str, int]:
    """How many uncorrectable errors each block of the card at ``path`` has had, by its name (``umc``)."""
    found = {}
    for name in sysfs.names(f"{path}/ras"):
        block = _COUNTS.fullmatch(name)
        count = _UNCORRECTABLE.search(sysfs.text(f"{path}/ras/{name}")) if block else None
        if block and count and int(count[1]):
            found[block[1]] = int(count[1])
    return found


def counts_errors(sysfs: Sysfs, path: str) -> bool:
    """Whether the card at ``path`` counts uncorrectable errors, which consumer cards do not."""
    return any(_COUNTS.fullmatch(name) for name in sysfs.names(f"{path}/ras"))


# AMD's device metrics exporter is asked as AMD's own device plugin asks it: ``List`` of
# ``metricssvc.MetricsService`` over its socket, with an empty request. Two fields of the answer matter, so it
# is decoded by hand.

METHOD = "/metricssvc.MetricsService/List"

_STATE, _HEALTH, _DEVICE = 1, 3, 5
"""Numbers of the fields: ``GPUStateResponse.GPUState``, ``GPUState.Health``, ``GPUState.Device``."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Kinds of field (Protocol Buffers, "Encoding")."""


class NoAnswerError(Exception):
    """The exporter runs but gives no usable answer; the text is the reason."""


def exporter_verdicts(socket: Path, deadline: float) -> dict[str, str]:
    """The exporter's verdict on each card (``healthy`` or another word), by PCI address or partition.

    Empty if there is no exporter at ``socket``. Raises ``NoAnswerError`` if it does not answer within
    ``deadline`` seconds, or its answer is invalid.
    """
    if not socket.is_socket():
        return {}
    import grpc

    try:
        with grpc.insecure_channel(f"unix:{socket}", options=(("grpc.enable_http_proxy", 0),)) as channel:
            answer = channel.unary_unary(METHOD, _as_it_is, _as_it_is)(b"", timeout=deadline)
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
    """The fields of a message with bytes as value. Raises ``ValueError`` if it is not a valid message."""
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


class AmdHealth:
    """The health of AMD cards. Used by one thread."""

    def __init__(self, context: Context, options: GpuOptions, environment: Environment = STANDARD) -> None:
        self._log = context.log
        self._sysfs = Sysfs(context.root)
        self._drm = DrmHealth(context.root, options, environment)
        self._limit = options.uncorrectable_errors
        self._exporter = context.root / environment.exporter_socket.lstrip("/")
        self._deadline = environment.timings.exporter_answers
        self._exporter_failure = Incident()

    def check(self, wholes: Mapping[str, Adapter]) -> dict[str, Health]:
        """The faults of cards, by their ids; healthy ones are missing.

        ``wholes`` has the GPU that each card is, or is a partition of: its faults concern all its partitions.
        """
        verdicts: dict[str, Health] = {}
        for name, word in self._exporter_verdicts().items():
            if name in wholes and word == "unhealthy":
                verdicts[name] = unhealthy("the device metrics exporter reports that it is unhealthy")
        gpus = {whole.id: whole for whole in wholes.values()}
        errors = {name: self._error_counts(whole.path) for name, whole in gpus.items()}
        faulty = {name: unhealthy(reason, Cause.ECC) for name, reason in errors.items() if reason}
        faulty |= self._drm.check(gpus)
        verdicts.update((name, faulty[whole.id]) for name, whole in wholes.items() if whole.id in faulty)
        return verdicts

    def _error_counts(self, path: str) -> str:
        if not self._limit:
            return ""
        errors = uncorrectable(self._sysfs, path)
        if sum(errors.values()) < self._limit:
            return ""
        text = ", ".join(f"{count} of {block}" for block, count in sorted(errors.items()))
        return f"uncorrectable errors since its driver was loaded: {text}"

    def _exporter_verdicts(self) -> Mapping[str, str]:
        try:
            verdicts = exporter_verdicts(self._exporter, self._deadline)
        except NoAnswerError as error:
            if self._exporter_failure.news(str(error)):
                self._log.warning("asking the device metrics exporter failed: %s", error)
            return {}
        if self._exporter_failure.over():
            self._log.info("the device metrics exporter answers again")
        return verdicts
