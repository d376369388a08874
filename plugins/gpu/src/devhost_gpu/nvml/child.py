"""The program that uses NVML, in a separate process (see :mod:`devhost_gpu.nvml.process`).

It imports nothing of devhost, and as little as possible. Usage: ``child.py DIRECTORY LIBRARY DURATIONS``.
DIRECTORY has ``pynvml.py``, LIBRARY is a ``libnvidia-ml.so.1`` (empty: the one that the loader finds), and
DURATIONS is a JSON object with the durations of :class:`Child` and ``exit_grace``, the seconds that a call
may take to end after the input has ended. Standard input and output have one JSON object per line. A request
``{"id": 1, "do": "inventory", "gpus": […]}`` is answered by ``{"id": 1, "ok": …}`` or ``{"id": 1, "error":
…}``. Requests about MIG instances have arguments, ``"with": {…}`` (see ``instances.py``). Events are sent
without a request: ``{"event": "xid", …}``. The program ends when its input ends.

Each GPU is asked on a separate thread, and one that does not answer is missing in the answer, so that it
delays no other. ``{"waitingFor": "0000:3b:00.0"}`` is sent when the GPU that has been asked for longest
without an answer changes; it is empty if there is none.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
from functools import cache, partial
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False  # importing it from typing takes four milliseconds and half a megabyte
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Ask = Callable[[Any, str], dict[str, Any]]

EVENTS = {
    8: "xid",
    2: "ecc",
    0x800: "dram",
    0x2000: "poison",
    0x4000: "unavailable",
    0x8000: "recovery",
    0x100: "mig",
}
"""The events to receive (``nvmlEventType…``) and their names here."""

SYSTEM_EVENTS = {1: "unbind", 2: "bind"}
"""The same of the driver (``nvmlSystemEventType…``)."""

LONGEST_PAUSE = 15.0
"""The longest pause in seconds between two waits for events that fail; pauses double up to this."""

RECOVERY_ACTION = 230
"""``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION``."""

NO_THREAD = "the process cannot start another thread (raise its limit of memory or processes)"

UNSCOPED = 0xFFFFFFFF
"""The instance in an event that concerns the whole GPU."""

MOST_PROCESSES = 128
"""Processes of one GPU that are reported at most."""

TIMEOUT, LOST, RESET_REQUIRED = 10, 15, 16
"""``NVML_ERROR_TIMEOUT``, ``…_GPU_IS_LOST`` and ``…_RESET_REQUIRED``."""

DRAINED = -2
"""Not an error of NVML: the GPU is drained for removal, and no process may open it (``nvidia-smi drain``)."""

REGISTERED = 3
"""``NVML_GPU_FABRIC_STATE_COMPLETED``."""

VGPU_GUEST = 2
"""``NVML_GPU_VIRTUALIZATION_MODE_VGPU``."""

FUNCTION_NOT_FOUND, VERSION_MISMATCH = 13, 25
"""``NVML_ERROR_FUNCTION_NOT_FOUND`` and ``…_ARGUMENT_VERSION_MISMATCH``."""

CANNOT_TELL = (3, 4, FUNCTION_NOT_FOUND)
"""``NVML_ERROR_NOT_SUPPORTED``, ``…_NO_PERMISSION``, ``…_FUNCTION_NOT_FOUND``: not about a GPU's health."""


class _Query:
    """One query to a GPU, and its answer."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.began = time.monotonic()
        self.answer: dict[str, Any] | None = None
        self.answered = 0.0
        self.is_late = False


class Child:
    """Answers requests one after another, and reports events meanwhile, on the descriptor ``output``.

    ``nvml`` is the module ``pynvml``. All times are in seconds: ``compare`` between comparisons of the MIG
    instances, because not every driver reports their changes; ``overtake`` until the next GPU is asked beside
    one that has not answered; ``silence`` without an answer of one more GPU until the answers that are there
    are given; ``event_wait`` for one wait for events, after which the driver is released; ``fresh`` for which
    an answer that came too late for its request is good for the next one.
    """

    def __init__(
        self,
        nvml: Any,
        output: int,
        compare: float = 5.0,
        overtake: float = 0.5,
        silence: float = 1.5,
        fresh: float = 5.0,
        event_wait: float = 0.5,
    ) -> None:
        self._event_wait = event_wait
        self.compare_every = compare
        self._overtake = overtake
        self._silence = silence
        self._fresh = fresh
        self._nvml = nvml
        self._output = output
        self._writing = threading.Lock()
        self._ending = threading.Event()
        self._is_ready = False
        self._changed = threading.Condition()
        self._queries: dict[str, _Query] = {}  # the last one to each GPU, the oldest first
        self._waiting_for = ""
        self._partitions: dict[str, list[Any]] = {}
        self._registered: dict[int | None, str] = {}
        self._event_set: Any = None
        self._listener: threading.Thread | None = None

    def answer(self, request: dict[str, Any]) -> None:
        try:
            self._initialize()
            gpus, asks = request["gpus"], {"probe": self._check, "links": self._nvlinks, "usage": self._usage}
            asks["processes"] = self._processes
            ask = asks.get(request["do"]) or ("with" in request and self._change(**request))
            reply = {"id": request["id"], "ok": self._each(gpus, ask) if ask else self.inventory(gpus)}
        except self._nvml.NVMLError as error:
            reply = {"id": request["id"], "error": _error(error)}
        except Exception as error:  # noqa: BLE001 - a bug here must become visible
            reply = {"id": request["id"], "error": _internal_error(error)}
        self.send(reply)

    def send(self, message: dict[str, Any]) -> None:
        """Writes one line. It is dropped when devhost no longer reads."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._writing:
            while data:
                try:
                    data = data[os.write(self._output, data) :]
                except OSError:
                    return

    def end(self) -> None:
        """Releases the driver."""
        self._ending.set()
        if self._is_ready:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return  # the driver was unloaded first

    def inventory(self, addresses: list[str]) -> dict[str, Any]:
        """The driver's report about itself and about each of the GPUs with these PCI addresses."""
        nvml = self._nvml
        if self._event_set is None:
            self._event_set = self._optional(nvml.nvmlEventSetCreate)
        found: dict[str, Any] = {
            "driver": self._optional(nvml.nvmlSystemGetDriverVersion),
            "cuda": self._optional(nvml.nvmlSystemGetCudaDriverVersion),
            "gpus": self._each(addresses, self._gpu),
        }
        if self._listener is None:
            listener = threading.Thread(target=self._listen, name="events", daemon=True)
            listener.start()
            self._listener = listener
        return found

    def compare(self) -> None:
        """Sends an event if the MIG instances differ from the last inventory, or a GPU is being drained."""
        for address, now in self._each([*self._partitions], self._partition).items():
            trouble = now.get("error")
            # a probe checks whether a GPU answers
            if trouble["code"] == DRAINED if trouble else now["partition"] != self._partitions[address]:
                self.send({"event": "mig"})
                return

    def _change(self, do: str, **request: Any) -> Ask:
        """A request about MIG instances: ``placements``, ``create`` or ``destroy``."""
        instances = _beside("instances.py")
        call = {name: getattr(instances, name) for name in ("placements", "create", "destroy")}[do]

        def ask(handle: Any, address: str) -> dict[str, Any]:
            try:
                answer: dict[str, Any] = call(self._nvml, handle, request["with"])
            except instances.RefusedError as error:
                return {"error": {"code": error.code, "text": str(error)}}
            return answer

        return ask

    def _initialize(self) -> None:
        if not self._is_ready:
            self._nvml.nvmlInit()
            self._is_ready = True

    def _each(self, addresses: list[str], ask: Ask) -> dict[str, Any]:
        """The answer of each GPU, or the error, which concerns no other GPU.

        GPUs that have not answered are missing, but at least one is there. A late answer causes an event, and
        is returned by the next call, with its ``age`` in seconds.
        """
        with self._changed:
            begun = []
            for address in addresses:
                if not self._is_busy(address, ask):
                    begun.append(self._start_query(address, ask))
                    self._changed.wait_for(lambda: begun[-1].answer is not None, self._overtake)
            while any(one.answer is None for one in begun):
                if not self._changed.wait(self._silence if self._collect(addresses, ask) else None):
                    break
            answers = self._collect(addresses, ask)
            for one in self._queries.values():
                one.is_late |= one.answer is None
            for address in answers:
                del self._queries[address]
            return answers

    def _is_busy(self, address: str, ask: Ask) -> bool:
        """Whether a GPU has not answered yet, or has just answered too late."""
        one = self._queries.get(address)
        if one is None:
            return False
        return one.answer is None or (one.ask == ask and time.monotonic() - one.answered < self._fresh)

    def _start_query(self, address: str, ask: Ask) -> _Query:
        self._queries.pop(address, None)
        one = self._queries[address] = _Query(ask)
        threading.Thread(target=self._ask, args=(address, one), name=address, daemon=True).start()
        self._report_waiting()
        return one

    def _collect(self, addresses: list[str], ask: Ask) -> dict[str, Any]:
        """The answers that are there."""
        now, found = time.monotonic(), {}
        for address in addresses:
            one = self._queries.get(address)
            if one is not None and one.ask == ask and one.answer is not None:
                found[address] = {**one.answer, "age": now - one.began} if one.is_late else one.answer
        return found

    def _ask(self, address: str, one: _Query) -> None:
        """Asks one GPU, on a separate thread."""
        try:
            if self._is_drained(address):
                answer = {"error": {"code": DRAINED, "text": "it is being drained"}}
            else:
                answer = one.ask(self._nvml.nvmlDeviceGetHandleByPciBusId(address.encode()), address)
        except self._nvml.NVMLError as error:
            answer = {"error": _error(error)}
        except Exception as error:  # noqa: BLE001 - as in answer()
            answer = {"error": _internal_error(error)}
        with self._changed:
            one.answer, one.answered = answer, time.monotonic()
            self._report_waiting()
            self._changed.notify_all()
            if one.is_late:
                self.send({"event": "answered", "gpu": address})

    def _is_drained(self, address: str) -> bool:
        nvml = self._nvml
        domain, bus, device = (int(part, 16) for part in address.split(".")[0].split(":"))
        where = nvml.nvmlPciInfo_t(domain=domain, bus=bus, device=device)
        where.busId = f"{domain:08X}:{bus:02X}:{device:02X}.0".encode()
        return bool(self._optional(nvml.nvmlDeviceQueryDrainState, where))

    def _report_waiting(self) -> None:
        waiting_for = next((address for address, one in self._queries.items() if one.answer is None), "")
        if waiting_for != self._waiting_for:
            self._waiting_for = waiting_for
            self.send({"waitingFor": waiting_for})

    def _optional(self, call: Callable[..., Any], *args: Any) -> Any:
        """The result of a call; ``None`` if it is not supported here. A lost GPU is an error."""
        try:
            value = call(*args)
        except AttributeError:  # an older pynvml does not know it
            return None
        except self._nvml.NVMLError as error:
            if error.value in (LOST, RESET_REQUIRED):
                raise
            return None
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def _gpu(self, handle: Any, address: str) -> dict[str, Any]:
        nvml, optional = self._nvml, self._optional
        uuid = nvml.nvmlDeviceGetUUID(handle)
        memory = optional(nvml.nvmlDeviceGetMemoryInfo, handle)  # not of GPUs that share the system's
        mig = optional(nvml.nvmlDeviceGetMigMode, handle)
        instances = self._of_migs(handle, self._instance) if mig and mig[0] else []
        self._partitions[address] = [mig, [instance["uuid"] for instance in instances]]
        self._register_events(handle, address)
        return {
            "uuid": uuid,
            "index": optional(nvml.nvmlDeviceGetIndex, handle),
            "minor": optional(nvml.nvmlDeviceGetMinorNumber, handle),
            "name": optional(nvml.nvmlDeviceGetName, handle),
            "memory": memory.total if memory else None,
            "capability": optional(nvml.nvmlDeviceGetCudaComputeCapability, handle),
            "architecture": optional(nvml.nvmlDeviceGetArchitecture, handle),
            "serial": optional(nvml.nvmlDeviceGetSerial, handle),
            "vbios": optional(nvml.nvmlDeviceGetVbiosVersion, handle),
            "mig": mig,
            "clique": optional(self._clique, handle),
            "instances": instances,
        }

    def _migs(self, gpu: Any) -> list[tuple[int, Any]]:
        found = []
        for number in range(self._optional(self._nvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
            mig = self._optional(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, number)
            if mig is not None:  # numbers may have gaps
                found.append((number, mig))
        return found

    def _of_migs(self, gpu: Any, ask: Callable[[int, Any], Any]) -> list[Any]:
        """The answer of each MIG instance, without those that are destroyed meanwhile."""
        found = []
        for number, mig in self._migs(gpu):
            try:
                found.append(ask(number, mig))
            except self._nvml.NVMLError:
                if any(number == other for other, _ in self._migs(gpu)):
                    raise
        return found

    def _instance(self, number: int, mig: Any) -> dict[str, Any]:
        nvml, optional = self._nvml, self._optional
        shape = optional(nvml.nvmlDeviceGetAttributes, mig)
        return {
            "index": number,
            "uuid": nvml.nvmlDeviceGetUUID(mig),
            "name": optional(nvml.nvmlDeviceGetName, mig),
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
        """The health of a GPU."""
        nvml, optional = self._nvml, self._optional
        uuid = nvml.nvmlDeviceGetUUID(handle)
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            if error.value not in CANNOT_TELL:
                raise
        recovery = None
        values = optional(nvml.nvmlDeviceGetFieldValues, handle, [RECOVERY_ACTION])
        if values is not None and values[0].nvmlReturn == 0:
            recovery = values[0].value.uiVal
        return {
            "uuid": uuid,
            "recovery": recovery,
            "remapped": optional(nvml.nvmlDeviceGetRemappedRows, handle),
            "retired": optional(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle),
            "fabric": optional(self._fabric, handle),
            "linked": optional(self._linked, handle),
            "ready": optional(self._ready),
            "licensed": optional(self._licensed, handle),
            "mode": optional(nvml.nvmlDeviceGetComputeMode, handle),
        }

    def _fabric(self, handle: Any) -> list[int]:
        """A GPU's registration with the fabric manager: state, status, and mask of its health."""
        info = self._fabric_info(handle)
        return [info.state, info.status, getattr(info, "healthMask", 0)]

    def _clique(self, handle: Any) -> list[Any]:
        """A registered GPU's cluster, as 32 hexadecimal digits, and the number of its clique there."""
        info = self._fabric_info(handle)
        if info.state != REGISTERED or info.status:
            raise self._nvml.NVMLError(CANNOT_TELL[0])
        cluster = ctypes.string_at(ctypes.addressof(info) + type(info).clusterUuid.offset, 16)
        return [cluster.hex(), info.cliqueId]

    def _fabric_info(self, handle: Any) -> Any:
        nvml = self._nvml
        info = nvml.c_nvmlGpuFabricInfo_v2_t()
        try:
            nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        except nvml.NVMLError as error:
            if error.value not in (FUNCTION_NOT_FOUND, VERSION_MISMATCH):
                raise
            old = nvml.c_nvmlGpuFabricInfo_t()  # before 535
            nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(old))
            return old
        return info

    def _linked(self, handle: Any) -> bool:
        """Whether any NVLink of a GPU is active. Raises an error if it has none, or they are off."""
        nvml = self._nvml
        if any(self._optional(nvml.nvmlDeviceGetMigMode, handle) or ()):
            raise nvml.NVMLError(CANNOT_TELL[0])  # MIG may turn them off
        if nvml.nvmlDeviceGetNvLinkState(handle, 0):
            return True
        links = range(1, nvml.NVML_NVLINK_MAX_LINKS)
        return any(self._optional(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in links)

    def _ready(self) -> bool:
        """Whether confidential GPUs may be used. Raises an error if they are not confidential."""
        nvml = self._nvml
        settings = self._optional(self._confidential_settings)
        if settings is None:
            is_confidential = bool(nvml.nvmlSystemGetConfComputeState().ccFeature)
        else:
            is_confidential = bool(settings.ccFeature or settings.multiGpuMode)
        return not is_confidential or bool(nvml.nvmlSystemGetConfComputeGpusReadyState())

    def _confidential_settings(self) -> Any:
        nvml = self._nvml
        settings = nvml.c_nvmlSystemConfComputeSettings_v1_t()
        if code := nvml.nvmlSystemGetConfComputeSettings(ctypes.byref(settings)):
            raise nvml.NVMLError(code)  # pynvml returns it
        return settings

    def _licensed(self, handle: Any) -> bool:
        """Whether a vGPU has its license. Raises an error if it is not a vGPU that needs one."""
        nvml = self._nvml
        if nvml.nvmlDeviceGetVirtualizationMode(handle) != VGPU_GUEST:
            return True
        found = nvml.nvmlDeviceGetGridLicensableFeatures_v4(handle)
        features = found.gridLicensableFeatures[: found.licensableFeaturesCount]
        return not found.isGridLicenseSupported or not features or any(one.featureState for one in features)

    def _usage(self, handle: Any, address: str) -> dict[str, Any]:
        """How much of a GPU is in use, and of each of its MIG instances by UUID."""
        nvml, optional = self._nvml, self._optional
        rates = optional(nvml.nvmlDeviceGetUtilizationRates, handle)  # not of GPUs in MIG mode
        mig = optional(nvml.nvmlDeviceGetMigMode, handle)

        def used(number: int, one: Any) -> tuple[str, list[int] | None]:
            return nvml.nvmlDeviceGetUUID(one), self._memory(one)

        return {
            "busy": rates.gpu if rates else None,
            "memory": self._memory(handle),
            "instances": dict(self._of_migs(handle, used) if mig and mig[0] else ()),
        }

    def _processes(self, handle: Any, address: str) -> dict[str, Any]:
        """The processes with a context on a GPU: id, and the ids of the MIG instance or ``None``."""
        nvml, found = self._nvml, set()
        for kind in ("Compute", "Graphics"):
            name = f"nvmlDeviceGet{kind}RunningProcesses"
            try:
                processes = getattr(nvml, f"{name}_v3", getattr(nvml, name))(handle)
            except nvml.NVMLError as error:
                if error.value not in CANNOT_TELL:
                    raise
                older = getattr(nvml, f"{name}_v2", None) if error.value == FUNCTION_NOT_FOUND else None
                processes = (older and self._optional(older, handle)) or ()
            for one in processes:
                instance = getattr(one, "gpuInstanceId", None), getattr(one, "computeInstanceId", None)
                found.add((one.pid, *(None if number == UNSCOPED else number for number in instance)))
        return {"processes": sorted(found, key=str)[:MOST_PROCESSES]}

    def _memory(self, handle: Any) -> list[int] | None:
        """The bytes that are in use, and all. Newer drivers do not count what they reserve."""
        nvml, optional = self._nvml, self._optional
        newer = getattr(nvml, "nvmlMemory_v2", None)
        found = (newer and optional(nvml.nvmlDeviceGetMemoryInfo, handle, newer)) or optional(
            nvml.nvmlDeviceGetMemoryInfo, handle
        )
        return [found.used, found.total] if found else None

    def _nvlinks(self, handle: Any, address: str) -> dict[str, Any]:
        """The number of active links to each peer: a PCI address, or ``switch``."""
        nvml = self._nvml
        peers: dict[str, int] = {}
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            try:
                if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                    continue
            except nvml.NVMLError as error:
                if error.value in (LOST, RESET_REQUIRED):
                    raise
                break  # it was the last one
            if self._optional(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) == 2:
                peer: str | None = "switch"
            else:
                pci = self._optional(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
                peer = pci and f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
            if peer:
                peers[peer] = peers.get(peer, 0) + 1
        return {"peers": peers}

    def _register_events(self, handle: Any, address: str) -> None:
        """Registers for a GPU's events."""
        key = ctypes.cast(handle, ctypes.c_void_p).value
        if self._registered.get(key) == address:
            return
        kinds = (self._optional(self._nvml.nvmlDeviceGetSupportedEventTypes, handle) or 0) & sum(EVENTS)
        if self._event_set is not None and kinds:
            self._optional(self._nvml.nvmlDeviceRegisterEvents, handle, kinds, self._event_set)
            self._registered[key] = address

    def _listen(self) -> None:
        """Reports events until the end."""
        sources: list[Callable[[], None]] = [self._await_event]
        if (system := self._system_set()) is not None:
            sources.append(partial(self._read_system_events, system))
        pause = self._event_wait
        while not self._ending.is_set():
            error = self._read_sources(sources)
            pause = min(LONGEST_PAUSE, 2 * pause) if error else self._event_wait
            if error and not self._ending.is_set():
                self.send({"event": "trouble", "error": _error(error)})
            if error or self._await_event not in sources:
                self._ending.wait(pause)

    def _read_sources(self, sources: list[Callable[[], None]]) -> Any:
        """Reports the events of all sources; returns the last error. Removes unsupported sources."""
        trouble = None
        for source in [*sources]:
            try:
                source()
            except self._nvml.NVMLError as error:
                if error.value in CANNOT_TELL:
                    sources.remove(source)
                else:
                    trouble = error
        return trouble

    def _await_event(self) -> None:
        nvml = self._nvml
        if not self._registered:
            self._ending.wait(self._event_wait)
            return
        try:
            event = nvml.nvmlEventSetWait_v2(self._event_set, round(1000 * self._event_wait))
        except nvml.NVMLError as error:
            if error.value != TIMEOUT:
                raise
            return
        key = ctypes.cast(event.device, ctypes.c_void_p).value
        message = {
            "event": EVENTS.get(event.eventType, "other"),
            "gpu": self._registered.get(key, ""),
            "data": event.eventData,
        }
        if event.gpuInstanceId != UNSCOPED:
            message["gi"] = event.gpuInstanceId
        if event.computeInstanceId != UNSCOPED:
            message["ci"] = event.computeInstanceId
        self.send(message)

    def _system_set(self) -> Any:
        """A set of the driver's own events; ``None`` if it has none (before 570)."""
        nvml = self._nvml
        try:
            made = nvml.nvmlSystemEventSetCreate(nvml.nvmlSystemEventSetCreateRequest_v1)
            nvml.nvmlSystemRegisterEvents(nvml.nvmlSystemRegisterEventRequest_v1, sum(SYSTEM_EVENTS), made)
        except (nvml.NVMLError, AttributeError):  # an older pynvml does not know them
            return None
        return made

    def _read_system_events(self, system: Any) -> None:
        nvml = self._nvml
        room = (nvml.c_nvmlSystemEventData_v1_t * 16)()
        found = nvml.nvmlSystemEventSetWait(nvml.nvmlSystemEventSetWaitRequest_v1, system, 0, room, 16)
        for event in found:
            self.send({"event": SYSTEM_EVENTS.get(event["eventType"], "other")})

    def _partition(self, gpu: Any, address: str) -> dict[str, Any]:
        """The partitioning of a GPU: its current and next MIG mode, and the UUIDs of its instances."""
        mode = self._optional(self._nvml.nvmlDeviceGetMigMode, gpu)
        uuids = (
            self._of_migs(gpu, lambda _, mig: self._nvml.nvmlDeviceGetUUID(mig)) if mode and mode[0] else []
        )
        return {"partition": [mode, uuids]}


def _error(error: Any) -> dict[str, Any]:
    return {"code": error.value, "text": str(error)}


def _internal_error(error: Exception) -> dict[str, Any]:
    if isinstance(error, UnicodeDecodeError):
        text = f"it gave a text that is not UTF-8: {error.object[:64]!r}"
    elif str(error) == "can't start new thread":
        text = NO_THREAD
    else:
        text = f"{type(error).__name__}: {error}"
    return {"code": -1, "text": text}


def _load(directory: str, library: str) -> Any:
    """Imports pynvml so that it uses this library: the loader uses a loaded library of the same name."""
    if library:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    # pynvml imports a name from it that it never uses, and the module would take two megabytes
    unused = type(sys)("ctypes.util")
    vars(unused)["find_library"] = None
    sys.modules["ctypes.util"] = unused
    sys.path.append(directory)
    gc.disable()  # a tenth of the start: the module creates thousands of objects, and all of them stay
    try:
        return __import__("pynvml")
    finally:
        gc.enable()


@cache
def _beside(name: str) -> Any:
    """Loads a file beside this one. The program has no packages, so that it starts fast."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)  # noqa: PTH100, PTH118, PTH120
    module = type(sys)(name.removesuffix(".py"))
    code = SourceFileLoader(module.__name__, path).get_code(module.__name__)
    assert code is not None
    exec(code, vars(module))
    return module


def main(arguments: list[str]) -> int:
    """Answers until the input ends; returns 1 if NVML cannot be loaded, which is reported as an event."""
    source, output = os.dup(0), os.dup(1)
    durations = json.loads(arguments[2])
    exit_grace = durations.pop("exit_grace")
    os.dup2(2, 1)  # output of a library must not mix with the lines
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
        threading.Event().wait(exit_grace)
        os._exit(0)  # a call hangs

    try:
        threading.Thread(target=read, name="requests", daemon=True).start()
    except RuntimeError:
        os.write(output, json.dumps({"event": "unusable", "text": NO_THREAD}).encode() + b"\n")
        return 1
    try:
        nvml = _load(arguments[0], arguments[1])
    except (OSError, ImportError) as error:
        text = json.dumps({"event": "unusable", "text": str(error)})
        os.write(output, text.encode() + b"\n")
        return 1
    child = Child(nvml, output, **durations)
    compare_at = time.monotonic() + child.compare_every
    while True:
        with arrived:
            arrived.wait_for(lambda: requests, max(0.0, compare_at - time.monotonic()))
            line = requests.pop(0) if requests else b""
        if line is None:
            child.end()
            os._exit(0)  # without waiting for threads that wait for events
        if line:
            child.answer(json.loads(line))
        if time.monotonic() >= compare_at:
            child.compare()
            compare_at = time.monotonic() + child.compare_every


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
