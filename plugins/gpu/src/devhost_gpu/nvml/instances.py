"""Creates and destroys MIG instances. :mod:`.child` loads it at the first request for it.

Like :mod:`.child`, it imports nothing of devhost. A placement is ``{"profile": 19, "start": 0, "size": 1}``:
the id of a GPU instance profile and the memory slices that it takes. With ``uuid``, an instance there counts
only if a MIG device in it has this UUID: another program may have replaced it. Every function takes the
module ``pynvml`` and the handle of a GPU.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False  # as in child.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MOST_PROFILES = 64
"""The profile numbers to try, and the most instances of one profile; nvml.h has 18 and seven."""

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, IN_USE, NO_ROOM = 3, 4, 6, 19, 23
"""``NVML_ERROR_NOT_SUPPORTED``, ``…_NO_PERMISSION``, ``…_NOT_FOUND``, ``…_IN_USE``,
``…_INSUFFICIENT_RESOURCES``."""

UNMADE = -3
"""Not an error of NVML: nothing was created, and what is at the placement was created by others."""

INVALID_ARGUMENT = 2
"""``NVML_ERROR_INVALID_ARGUMENT``: there is no further profile."""

REASONS = {
    NOT_SUPPORTED: "MIG mode is off, or the GPU does not support it",
    NO_PERMISSION: "permission denied (run devhost as root)",
    IN_USE: "it is in use by a process",
    NO_ROOM: "not enough of the GPU is free",
}


class RefusedError(Exception):
    """A reason in one line, and the number of the error (``NVML_ERROR_…``)."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def placements(nvml: Any, gpu: Any, _: dict[str, Any]) -> dict[str, Any]:
    """The profiles of a GPU with their possible placements, and its GPU instances."""
    try:
        profiles = _profiles(nvml, gpu)
        existing = [one for profile in profiles for one in _of(nvml, gpu, profile["profile"])]
        instances = [_described(nvml, one) for one in existing]
        for one in instances:
            one["uuids"] = _uuids(nvml, gpu, one["gi"])
        return {"profiles": profiles, "instances": instances}
    except nvml.NVMLError as error:
        raise _refused("cannot read the MIG profiles", error) from error


def create(nvml: Any, gpu: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Creates a GPU instance at a placement, and one compute instance that fills it.

    An instance that is there already at exactly this placement is an error, unless ``resume`` is set: then
    what is missing is added. With ``uuid``, none is created.
    """
    name, is_new = f"a GPU instance {_named(wanted)}", not wanted.get("resume")
    try:
        instance = _at(nvml, gpu, wanted)
        if instance is not None and (is_new or not _is_wanted(nvml, gpu, instance, wanted)):
            raise RefusedError(f"cannot create {name}: there is one already", UNMADE)
        if instance is None:
            is_new = True
            if wanted.get("uuid"):
                raise RefusedError(f"cannot complete {name}: it is gone", UNMADE)
            place = nvml.c_nvmlGpuInstancePlacement_t(wanted["start"], wanted["size"])
            instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                gpu, wanted["profile"], ctypes.byref(place)
            )
    except nvml.NVMLError as error:
        raise _refused(f"cannot create {name}", error, UNMADE if is_new else 0) from error
    try:
        computes = _computes(nvml, instance)
        if not computes:
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, _filling(nvml, instance))
            computes = _computes(nvml, instance)
        gi, ci = nvml.nvmlGpuInstanceGetInfo(instance).id, nvml.nvmlComputeInstanceGetInfo(computes[0]).id
        return {"gi": gi, "ci": ci, **_device(nvml, gpu, gi, ci)}
    except nvml.NVMLError as error:
        raise _refused(f"cannot create a compute instance in {name}", error) from error


def destroy(nvml: Any, gpu: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Destroys the GPU instance at exactly a placement with its compute instances, if there is one."""
    try:
        instance = _at(nvml, gpu, wanted)
        if instance is not None and not _is_wanted(nvml, gpu, instance, wanted):
            instance = None
        if instance is not None:
            for compute in _computes(nvml, instance):
                nvml.nvmlComputeInstanceDestroy(compute)
            nvml.nvmlGpuInstanceDestroy(instance)
    except nvml.NVMLError as error:
        raise _refused(f"cannot destroy the GPU instance {_named(wanted)}", error) from error
    return {"destroyed": instance is not None}


def _profiles(nvml: Any, gpu: Any) -> list[dict[str, Any]]:
    found = []
    for number in range(MOST_PROFILES):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number)
        except nvml.NVMLError as error:
            if error.value == INVALID_ARGUMENT:
                break
            if error.value == NOT_SUPPORTED:
                continue
            raise
        name = info.name if isinstance(info.name, str) else info.name.decode(errors="replace")
        found.append(
            {
                "profile": info.id,
                "name": name.removeprefix("MIG "),
                "slices": info.sliceCount,
                "multiprocessors": info.multiprocessorCount,
                "copy_engines": info.copyEngineCount,
                "decoders": info.decoderCount,
                "encoders": info.encoderCount,
                "jpeg_engines": info.jpegCount,
                "ofa_engines": info.ofaCount,
                "memory": info.memorySizeMB,
                "placements": _possible(nvml, gpu, info.id),
            }
        )
    return found


def _possible(nvml: Any, gpu: Any, profile: int) -> list[list[int]]:
    """Where a GPU instance can be: first memory slice and their number."""
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, None, ctypes.byref(count))
    room = (nvml.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, room, ctypes.byref(count))
    return [[one.start, one.size] for one in room[: count.value]]


def _of(nvml: Any, gpu: Any, profile: int) -> list[Any]:
    """The GPU instances of a profile; none while MIG mode is off."""
    room = (nvml.c_nvmlGpuInstance_t * MOST_PROFILES)()
    try:
        return _filled(nvml.nvmlDeviceGetGpuInstances, gpu, profile, room)
    except nvml.NVMLError as error:
        if error.value != NOT_SUPPORTED:
            raise
        return []


def _filled(call: Callable[..., Any], of: Any, profile: int, room: Any) -> list[Any]:
    count = ctypes.c_uint(len(room))
    call(of, profile, room, ctypes.byref(count))
    return list(room[: count.value])


def _at(nvml: Any, gpu: Any, wanted: dict[str, Any]) -> Any:
    """The GPU instance at exactly a placement, or ``None``."""
    for one in _of(nvml, gpu, wanted["profile"]):
        place = nvml.nvmlGpuInstanceGetInfo(one).placement
        if (place.start, place.size) == (wanted["start"], wanted["size"]):
            return one
    return None


def _described(nvml: Any, instance: Any) -> dict[str, Any]:
    info = nvml.nvmlGpuInstanceGetInfo(instance)
    return {
        "gi": info.id,
        "profile": info.profileId,
        "start": info.placement.start,
        "size": info.placement.size,
        "computes": [nvml.nvmlComputeInstanceGetInfo(one).id for one in _computes(nvml, instance)],
    }


def _compute_profiles(nvml: Any, instance: Any) -> list[Any]:
    found = []
    for number in range(MOST_PROFILES):
        try:
            found.append(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0))
        except nvml.NVMLError as error:
            if error.value == INVALID_ARGUMENT:
                break
            if error.value != NOT_SUPPORTED:
                raise
    return found


def _computes(nvml: Any, instance: Any) -> list[Any]:
    found = []
    for profile in _compute_profiles(nvml, instance):
        room = (nvml.c_nvmlComputeInstance_t * MOST_PROFILES)()
        found += _filled(nvml.nvmlGpuInstanceGetComputeInstances, instance, profile.id, room)
    return found


def _filling(nvml: Any, instance: Any) -> int:
    """The profile of the compute instance that takes a whole GPU instance."""
    return int(max(_compute_profiles(nvml, instance), key=lambda one: one.sliceCount).id)


def _device(nvml: Any, gpu: Any, gi: int, ci: int) -> dict[str, Any]:
    """The UUID and the number of a MIG device."""
    for number, mig in _devices(nvml, gpu, gi):
        if nvml.nvmlDeviceGetComputeInstanceId(mig) == ci:
            return {"uuid": nvml.nvmlDeviceGetUUID(mig), "index": number}
    raise nvml.NVMLError(NOT_FOUND)


def _uuids(nvml: Any, gpu: Any, gi: int) -> list[str]:
    """The UUIDs of the MIG devices in a GPU instance."""
    return [nvml.nvmlDeviceGetUUID(mig) for _, mig in _devices(nvml, gpu, gi)]


def _devices(nvml: Any, gpu: Any, gi: int) -> Iterator[tuple[int, Any]]:
    """The MIG devices in a GPU instance, each with its number."""
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
            found = nvml.nvmlDeviceGetGpuInstanceId(mig)
        except nvml.NVMLError as error:
            if error.value != NOT_FOUND:  # numbers may have gaps
                raise
            continue
        if found == gi:
            yield number, mig


def _is_wanted(nvml: Any, gpu: Any, instance: Any, wanted: dict[str, Any]) -> bool:
    """Whether an instance is the one that is meant: also one that has no MIG device yet, or no longer."""
    if not (uuid := wanted.get("uuid")):
        return True
    found = _uuids(nvml, gpu, nvml.nvmlGpuInstanceGetInfo(instance).id)
    return not found or uuid in found


def _named(wanted: dict[str, Any]) -> str:
    return f"{wanted.get('name') or wanted['profile']} at memory slice {wanted['start']}"


def _refused(what: str, error: Any, code: int = 0) -> RefusedError:
    return RefusedError(f"{what}: {REASONS.get(error.value) or f'NVML: {error}'}", code or error.value)
