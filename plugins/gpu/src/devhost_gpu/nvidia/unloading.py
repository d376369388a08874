"""Signs that NVIDIA's driver is being unloaded, for which no process may have it open.

The GPU operator's driver manager unloads the driver after it has stopped the operator's own pods, which wait
for two files before they start: ``driver-ready`` is removed when the validator ends, which is before the
driver is unloaded, and ``.driver-ctr-ready`` when the container of the driver ends (NVIDIA/gpu-operator,
``assets/state-operator-validation`` and ``assets/state-driver``).

Without the operator, modules that use the driver are unloaded first. CUDA needs one of them, ``nvidia_uvm``.
"""

from __future__ import annotations

import os
import threading

from devhost_gpu.environment import STANDARD, Environment

from .cards import DriverFiles

OPERATOR_ROOT = "/run/nvidia/driver"
"""Where the GPU operator's container has the driver."""

VALIDATIONS = "/run/nvidia/validations"
READY = f"{VALIDATIONS}/driver-ready"
CONTAINER_READY = f"{VALIDATIONS}/.driver-ctr-ready"

UVM = "/sys/module/nvidia_uvm"


class Unloading:
    """Whether the driver is being unloaded. May be used by any thread.

    A sign counts until it is gone, until the driver was loaded again, or for ``Timings.unloading``.
    """

    def __init__(self, files: DriverFiles, driver_root: str, environment: Environment = STANDARD) -> None:
        self._files = files
        self._is_operators = os.path.normpath(driver_root) == OPERATOR_ROOT
        self._timings, self._clock = environment.timings, environment.clock
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._since: float | None = None
        self._driver: tuple[int, str] | None = None

    def reason(self) -> str:
        """Why the driver must not be opened; empty if it may be."""
        with self._lock:
            return self._reason()

    def _reason(self) -> str:
        driver = self._files.identity
        if driver is None:
            self._driver = None
            return ""
        sign = self._sign()
        if not sign:
            self._since, self._driver = None, driver
            return ""
        if self._since is None:
            self._since, self._driver = self._clock(), driver
        is_over = driver != self._driver or self._clock() - self._since >= self._timings.unloading
        return "" if is_over else sign

    def _sign(self) -> str:
        exists = {path: self._files.exists(path) for path in (READY, CONTAINER_READY, UVM)}
        self._seen.update(path for path, there in exists.items() if there)
        if self._is_operators and self._files.exists(VALIDATIONS):
            for path in (READY, CONTAINER_READY):
                if not exists[path] and (path == READY or path in self._seen):
                    return f"the GPU operator is replacing NVIDIA's driver: {path} does not exist"
        if UVM in self._seen and not exists[UVM]:
            return "NVIDIA's driver is being unloaded: its module nvidia_uvm is gone"
        return ""
