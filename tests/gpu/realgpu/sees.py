"""A CUDA program that prints which GPUs it sees, after using each. It only needs the driver's
``libcuda.so.1``.

python sees.py [LIBRARY]

It prints one JSON object: ``{"gpus": ["8dfe9b2c3b5a11eebe560242ac120002", …]}``, the UUIDs of GPUs or MIG
instances as hex digits; or ``{"error": 100, "call": "cuInit"}``. The calls are those of the CUDA Driver API.
"""

from __future__ import annotations

import ctypes
import json
import sys

SIZE = 64 << 20
"""Bytes that it fills on each GPU and reads back."""

PATTERN = 0x5EED5EED


class Error(Exception):
    """A call failed: its name and CUDA's number for the error."""


def main(arguments: list[str]) -> int:
    try:
        print(json.dumps({"gpus": list(seen(arguments[0] if arguments else "libcuda.so.1"))}))
    except Error as error:
        call, number = error.args
        print(json.dumps({"error": number, "call": call}))
    return 0


def seen(library: str) -> list[str]:
    """The UUIDs of all GPUs, each of which has done something.

    Raises:
        Error: a call failed.
        OSError: there is no such library.
    """
    cuda = ctypes.CDLL(library)

    def call(name: str, *arguments: object) -> None:
        if number := getattr(cuda, name)(*arguments):
            raise Error(name, number)

    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    found = []
    for number in range(count.value):
        device = ctypes.c_int()
        call("cuDeviceGet", ctypes.byref(device), number)
        uuid = (ctypes.c_ubyte * 16)()
        # the first one names the GPU, also for a program in one of its MIG instances
        name = "cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        call(name, ctypes.byref(uuid), device)
        context = ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        memory = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(SIZE))
        call("cuMemsetD32_v2", memory, ctypes.c_uint(PATTERN), ctypes.c_size_t(SIZE // 4))
        back = (ctypes.c_uint * (SIZE // 4))()
        call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(SIZE))
        if bytes(back) != PATTERN.to_bytes(4, sys.byteorder) * (SIZE // 4):
            raise Error("cuMemcpyDtoH_v2", -1)
        call("cuMemFree_v2", memory)
        call("cuDevicePrimaryCtxRelease_v2", device)
        found.append(bytes(uuid).hex())
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
