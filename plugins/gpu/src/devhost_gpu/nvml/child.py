"""The program that uses NVML, in a process of its own (see :mod:`devhost_gpu.nvml.session`).

It imports nothing of devhost and as little as it can: ``child.py DIRECTORY [LIBRARY]``, where DIRECTORY has
``pynvml.py`` and LIBRARY is a ``libnvidia-ml.so.1`` (else the loader's own is taken). Standard input and
output carry one JSON object a line. A request ``{"id": 1, "do": "inventory", "gpus": […]}`` is answered by
``{"id": 1, "ok": …}`` or ``{"id": 1, "error": …}``; before it turns to a GPU it writes
``{"at": "0000:3b:00.0"}``, so that a call that hangs can be laid to one. Events come unasked:
``{"event": "xid", …}``. It ends when its input does.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing these would take a megabyte
    from collections.abc import Callable

EVENTS = {
    8: "xid",
    2: "ecc",
    0x800: "dram",
    0x2000: "poison",
    0x4000: "unavailable",
    0x8000: "recovery",
    0x100: "mig",
}
"""The events to hear of (``nvmlEventType…``) and what they are called here."""

SYSTEM_EVENTS = {1: "unbind", 2: "bind"}
"""The same of the driver (``nvmlSystemEventType…``)."""

WAIT = 500
"""Milliseconds one wait for events may take; the longest until the driver is told that a GPU is let go."""

MIG_ROUNDS = 10
"""Every so many waits the MIG instances are compared: not every driver tells of their changes."""

LAST_WORDS = 2.0
"""Seconds in which a call may end after the input has ended."""

RECOVERY_ACTION = 230
"""``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION``."""

UNSCOPED = 0xFFFFFFFF
"""What an event has for an instance when it concerns the whole GPU."""

TIMEOUT, LOST, RESET_REQUIRED = 10, 15, 16
"""``NVML_ERROR_TIMEOUT``, ``…_GPU_IS_LOST`` and ``…_RESET_REQUIRED``."""


CANNOT_TELL = (3, 4, 13)
"""``NVML_ERROR_NOT_SUPPORTED``, ``…_NO_PERMISSION``, ``…_FUNCTION_NOT_FOUND``: they say nothing of a GPU."""


class Child:
    """Answers requests one after another, and tells of events meanwhile."""

    def __init__(self, nvml: Any, output: int) -> None:
        self._nvml = nvml
        self._output = output
        self._writing = threading.Lock()
        self._ending = threading.Event()
        self._is_ready = False
        self._handles: dict[str, Any] = {}
        self._told: dict[str, list[Any]] = {}
        self._names: dict[int | None, str] = {}
        self._set: Any = None
        self._ears: threading.Thread | None = None

    def answer(self, request: dict[str, Any]) -> None:
        """Answers one request."""
        self.tell({"at": ""})
        try:
            self._begin()
            calls = {"inventory": self.inventory, "probe": self.probe, "links": self.links}
            reply = {"id": request["id"], "ok": calls[request["do"]](request["gpus"])}
        except self._nvml.NVMLError as error:
            reply = {"id": request["id"], "error": _trouble(error)}
        except Exception as error:  # noqa: BLE001 - a mistake in here must be read by somebody
            text = f"{type(error).__name__}: {error}"
            reply = {"id": request["id"], "error": {"code": -1, "text": text}}
        self.tell(reply)

    def tell(self, message: dict[str, Any]) -> None:
        """Writes one line. It is dropped when nobody listens any more."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._writing:
            while data:
                try:
                    data = data[os.write(self._output, data) :]
                except OSError:
                    return

    def end(self) -> None:
        """Lets the driver go."""
        self._ending.set()
        if self._is_ready:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return  # the driver has gone first

    def inventory(self, addresses: list[str]) -> dict[str, Any]:
        """What the driver tells of itself and of the GPUs with these PCI addresses, each by itself."""
        nvml = self._nvml
        found: dict[str, Any] = {
            "driver": self._maybe(nvml.nvmlSystemGetDriverVersion),
            "cuda": self._maybe(nvml.nvmlSystemGetCudaDriverVersion),
            "gpus": {address: self._each(address, self._gpu) for address in addresses},
        }
        if self._ears is None:
            self._ears = threading.Thread(target=self._listen, name="events", daemon=True)
            self._ears.start()
        return found

    def probe(self, addresses: list[str]) -> dict[str, Any]:
        """How each GPU is."""
        return {address: self._each(address, self._check) for address in addresses}

    def links(self, addresses: list[str]) -> dict[str, Any]:
        """The NVLinks of each GPU."""
        return {address: self._each(address, self._nvlinks) for address in addresses}

    def _begin(self) -> None:
        if not self._is_ready:
            self._nvml.nvmlInit()
            self._is_ready = True

    def _each(self, address: str, ask: Callable[[Any, str], dict[str, Any]]) -> dict[str, Any]:
        """What is asked of one GPU, or what went wrong with it, which concerns no other."""
        self.tell({"at": address})
        try:
            handle = self._nvml.nvmlDeviceGetHandleByPciBusId(address.encode())
            self._handles[address] = handle
            return ask(handle, address)
        except self._nvml.NVMLError as error:
            return {"error": _trouble(error)}

    def _maybe(self, call: Callable[..., Any], *args: Any) -> Any:
        """What a call gives; ``None`` if this driver or GPU does not have it. A lost GPU is an error."""
        try:
            value = call(*args)
        except self._nvml.NVMLError as error:
            if error.value in (LOST, RESET_REQUIRED):
                raise
            return None
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def _gpu(self, handle: Any, address: str) -> dict[str, Any]:
        nvml, maybe = self._nvml, self._maybe
        uuid = nvml.nvmlDeviceGetUUID(handle)
        memory = maybe(nvml.nvmlDeviceGetMemoryInfo, handle)  # not of GPUs that share the system's
        mig = maybe(nvml.nvmlDeviceGetMigMode, handle)
        instances = self._instances(handle) if mig and mig[0] else []
        self._told[address] = [mig, [instance["uuid"] for instance in instances]]
        self._hear(handle, address)
        return {
            "uuid": uuid,
            "index": maybe(nvml.nvmlDeviceGetIndex, handle),
            "minor": maybe(nvml.nvmlDeviceGetMinorNumber, handle),
            "name": maybe(nvml.nvmlDeviceGetName, handle),
            "memory": memory.total if memory else None,
            "capability": maybe(nvml.nvmlDeviceGetCudaComputeCapability, handle),
            "architecture": maybe(nvml.nvmlDeviceGetArchitecture, handle),
            "serial": maybe(nvml.nvmlDeviceGetSerial, handle),
            "vbios": maybe(nvml.nvmlDeviceGetVbiosVersion, handle),
            "mig": mig,
            "instances": instances,
        }

    def _instances(self, gpu: Any) -> list[dict[str, Any]]:
        return [self._instance(number, mig) for number, mig in self._migs(gpu)]

    def _migs(self, gpu: Any) -> list[tuple[int, Any]]:
        found = []
        for number in range(self._maybe(self._nvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
            mig = self._maybe(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, number)
            if mig is not None:  # numbers may have gaps
                found.append((number, mig))
        return found

    def _instance(self, number: int, mig: Any) -> dict[str, Any]:
        nvml, maybe = self._nvml, self._maybe
        shape = maybe(nvml.nvmlDeviceGetAttributes, mig)
        return {
            "index": number,
            "uuid": nvml.nvmlDeviceGetUUID(mig),
            "name": maybe(nvml.nvmlDeviceGetName, mig),
            "gi": nvml.nvmlDeviceGetGpuInstanceId(mig),
            "ci": nvml.nvmlDeviceGetComputeInstanceId(mig),
            "memory": shape.memorySizeMB if shape else None,
            "shape": shape
            and [
                shape.gpuInstanceSliceCount,
                shape.computeInstanceSliceCount,
                shape.multiprocessorCount,
                shape.sharedCopyEngineCount,
                shape.sharedDecoderCount,
                shape.sharedEncoderCount,
                shape.sharedJpegCount,
                shape.sharedOfaCount,
            ],
        }

    def _check(self, handle: Any, address: str) -> dict[str, Any]:
        nvml, maybe = self._nvml, self._maybe
        uuid = nvml.nvmlDeviceGetUUID(handle)
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            if error.value not in CANNOT_TELL:
                raise
        recovery = None
        values = maybe(nvml.nvmlDeviceGetFieldValues, handle, [RECOVERY_ACTION])
        if values is not None and values[0].nvmlReturn == 0:
            recovery = values[0].value.uiVal
        return {
            "uuid": uuid,
            "recovery": recovery,
            "remapped": maybe(nvml.nvmlDeviceGetRemappedRows, handle),
            "retired": maybe(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle),
        }

    def _nvlinks(self, handle: Any, address: str) -> dict[str, Any]:
        """How many links that are up lead where: to a PCI address, or to a ``switch``."""
        nvml = self._nvml
        peers: dict[str, int] = {}
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            try:
                if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                    continue
            except nvml.NVMLError as error:
                if error.value in (LOST, RESET_REQUIRED):
                    raise
                break  # there are no more
            if self._maybe(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) == 2:
                peer: str | None = "switch"
            else:
                pci = self._maybe(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
                peer = pci and f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
            if peer:
                peers[peer] = peers.get(peer, 0) + 1
        return {"peers": peers}

    def _hear(self, handle: Any, address: str) -> None:
        """Asks to be told of a GPU's events."""
        key = ctypes.cast(handle, ctypes.c_void_p).value
        if self._names.get(key) == address:
            return
        if self._set is None:
            self._set = self._maybe(self._nvml.nvmlEventSetCreate)
        kinds = (self._maybe(self._nvml.nvmlDeviceGetSupportedEventTypes, handle) or 0) & sum(EVENTS)
        if self._set is not None and kinds:
            self._maybe(self._nvml.nvmlDeviceRegisterEvents, handle, kinds, self._set)
            self._names[key] = address

    def _listen(self) -> None:
        """Tells of events until the end."""
        system = self._system_set()
        rounds = 0
        while not self._ending.is_set():
            try:
                self._await_event()
                if system is not None:
                    self._take_system_events(system)
                if rounds % MIG_ROUNDS == 0:
                    self._compare()
            except self._nvml.NVMLError as error:
                if self._ending.is_set():
                    return
                self.tell({"event": "trouble", "error": _trouble(error)})
                self._ending.wait(2 * WAIT / 1000)
            rounds += 1

    def _await_event(self) -> None:
        nvml = self._nvml
        if not self._names:
            self._ending.wait(WAIT / 1000)
            return
        try:
            event = nvml.nvmlEventSetWait_v2(self._set, WAIT)
        except nvml.NVMLError as error:
            if error.value != TIMEOUT:
                raise
            return
        key = ctypes.cast(event.device, ctypes.c_void_p).value
        message = {
            "event": EVENTS.get(event.eventType, "other"),
            "gpu": self._names.get(key, ""),
            "data": event.eventData,
        }
        if event.gpuInstanceId != UNSCOPED:
            message["gi"] = event.gpuInstanceId
        if event.computeInstanceId != UNSCOPED:
            message["ci"] = event.computeInstanceId
        self.tell(message)

    def _system_set(self) -> Any:
        """A set of the driver's own events; ``None`` where it has none (before 570)."""
        nvml = self._nvml
        try:
            made = nvml.nvmlSystemEventSetCreate(nvml.nvmlSystemEventSetCreateRequest_v1)
            nvml.nvmlSystemRegisterEvents(nvml.nvmlSystemRegisterEventRequest_v1, sum(SYSTEM_EVENTS), made)
        except (nvml.NVMLError, AttributeError):  # an older pynvml does not know them
            return None
        return made

    def _take_system_events(self, system: Any) -> None:
        nvml = self._nvml
        room = (nvml.c_nvmlSystemEventData_v1_t * 16)()
        found = nvml.nvmlSystemEventSetWait(nvml.nvmlSystemEventSetWaitRequest_v1, system, 0, room, 16)
        for event in found:
            self.tell({"event": SYSTEM_EVENTS.get(event["eventType"], "other")})

    def _compare(self) -> None:
        """Tells if there are other MIG instances than the last inventory had."""
        for address, told in list(self._told.items()):
            try:
                now = self._partition(self._handles[address])
            except self._nvml.NVMLError:
                continue  # whether a GPU answers is for a probe to say
            if now != told:
                self.tell({"event": "mig"})
                return

    def _partition(self, gpu: Any) -> list[Any]:
        """How a GPU is split: its MIG mode, now and next, and the UUIDs of its instances."""
        mode = self._maybe(self._nvml.nvmlDeviceGetMigMode, gpu)
        migs = self._migs(gpu) if mode and mode[0] else []
        return [mode, [self._nvml.nvmlDeviceGetUUID(mig) for _, mig in migs]]


def _trouble(error: Any) -> dict[str, Any]:
    return {"code": error.value, "text": str(error)}


def _load(directory: str, library: str) -> Any:
    """pynvml, with the library that it is to use: the loader takes one of the same name that is loaded."""
    if library:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    # pynvml asks for a name of it that it never uses, and it would bring in two megabytes of modules
    unused = type(sys)("ctypes.util")
    vars(unused)["find_library"] = None
    sys.modules["ctypes.util"] = unused
    sys.path.append(directory)
    return __import__("pynvml")


def main(arguments: list[str]) -> int:
    """Answers until the input ends; 1 if NVML cannot be loaded, which is told as an event."""
    source, output = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what a library prints must not get between the lines
    ctypes.CDLL(None).prctl(15, b"devhost-nvml", 0, 0, 0)  # PR_SET_NAME
    requests: list[bytes | None] = []
    arrived = threading.Condition()

    def read() -> None:
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                with arrived:
                    requests.append(line)
                    arrived.notify()
        with arrived:
            requests.append(None)
            arrived.notify()
        threading.Event().wait(LAST_WORDS)
        os._exit(0)  # a call hangs

    threading.Thread(target=read, name="requests", daemon=True).start()
    try:
        nvml = _load(arguments[0], arguments[1] if len(arguments) > 1 else "")
    except (OSError, ImportError) as error:
        text = json.dumps({"event": "unusable", "text": str(error)})
        os.write(output, text.encode() + b"\n")
        return 1
    child = Child(nvml, output)
    while True:
        with arrived:
            while not requests:
                arrived.wait()
            line = requests.pop(0)
        if line is None:
            child.end()
            os._exit(0)  # without waiting for threads that wait for events
        child.answer(json.loads(line))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
