"""The parts of machines with Intel FPGAs, as the files that their drivers create.

What is where, from Linux 6.12:

- A PCI function with Device Feature Lists has a region of the class ``fpga_region``, which is nothing but a
  container, and below that the platform devices ``dfl-fme.<N>`` and ``dfl-port.<N>`` with their nodes:
  drivers/fpga/dfl.c, ``dfl_fpga_feature_devs_enumerate``, ``build_info_create_dev``.
- Below the engine: ``dfl-fme-mgr.<N>`` with an ``fpga_manager``; for each port ``dfl-fme-bridge.<N>.auto``
  with an ``fpga_bridge`` and ``dfl-fme-region.<N>`` with an ``fpga_region`` that has the ``compat_id``:
  drivers/fpga/dfl-fme-pr.c. All regions of an engine have one ``compat_id``, that of the manager:
  drivers/fpga/dfl-fme-region.c.
- Files of engine and port: Documentation/ABI/testing/sysfs-platform-dfl-fme and -dfl-port; how each prints
  its number: drivers/fpga/dfl-fme-main.c, dfl-fme-error.c, dfl-afu-main.c, dfl-afu-error.c.
- A port that goes to a virtual function leaves the physical one: ``dfl_fpga_cdev_release_port`` in dfl.c.

The driver of the OPAE project has ``fpga/intel-fpga-dev.<N>`` with ``intel-fpga-fme.<N>`` and
``intel-fpga-port.<N>`` instead, the engine's id in ``pr/interface_id``, its errors in ``errors/fme-errors``:
the paths are those of the OPAE tools and of the tests of the Intel plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devhost_testing.trees import Tree

ARRIA, STRATIX = "69528db6eb31577a8c3668f9faa081f6", "9346116d52485a4ea8a12d2b5ac4ac4d"
"""Interface ids."""

NLB, OTHER = "d8424dc4a4a3c413f89e433683f9040b", "f7df405cbd7acf7222f144b0b93acd18"
"""AFU ids: of the loopback that comes with the cards, and of another one."""

ONES = "f" * 32

ENGINE_ERRORS = ("pcie0_errors", "pcie1_errors", "nonfatal_errors", "catfatal_errors", "fme_errors")
ZERO = "0x0"

CONFIG = bytes.fromhex("8680300b06041000000012120000800000000000") + bytes(44)
"""The first 64 bytes of a configuration space."""


class FpgaTree(Tree):
    """A machine with FPGAs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._regions = self._ports = self._engines = self._bridges = self._hwmons = self._cards = 0
        self._minors = 0

    def function(self, address: str, ids: str = "8086:0b30", driver: str = "dfl-pci", **facts: Any) -> str:
        """An accelerator with a configuration space by default; returns its ``sys_path``."""
        board = {"subsystem": f"{ids.partition(':')[0]}:0000", "pci_class": "0x120000"}
        made = super().function(address, ids, driver, **board | facts)
        (self.root / made.lstrip("/") / "config").write_bytes(CONFIG)
        return made

    def kill(self, function: str) -> None:
        """The function lost its link: everything reads as ones, also for its drivers."""
        place = self.root / function.lstrip("/")
        (place / "config").write_bytes(b"\xff" * 64)
        for name, text in (("afu_id", ONES), ("compat_id", ONES), ("interface_id", ONES), ("id", "3")):
            for file in place.rglob(name):
                file.write_text(f"{text}\n")
        for name in (*ENGINE_ERRORS, "bitstream_id", "errors/errors"):
            for file in place.rglob(name):
                file.write_text("0xffffffffffffffff\n")

    # DFL

    def container(self, function: str) -> str:
        """The region that has a card's engine and ports in it."""
        return self._class(function, "fpga_region", f"region{self._next('_regions')}")

    def engine(self, container: str, *, ports: int = 1, interface_id: str | None = ARRIA) -> str:
        """A management engine; without an interface id it is one that cannot program."""
        number = self._next("_engines")
        files = {
            "ports_num": str(ports),
            "bitstream_id": "0x23000410010309",
            "bitstream_metadata": "0x210223",
        }
        files |= {"socket_id": "0", "cache_size": "0", "fabric_version": "0"}
        files |= {
            f"errors/{name}": ZERO for name in (*ENGINE_ERRORS, "first_error", "next_error", "inject_errors")
        }
        path = self._platform(container, f"dfl-fme.{number}", "dfl-fme", files, node=True)
        if interface_id is not None:
            manager = self._platform(path, f"dfl-fme-mgr.{number}", "dfl-fme-mgr")
            state = {"name": "FPGA Manager for DFL", "state": "unknown", "status": ""}
            self._class(manager, "fpga_manager", f"fpga{number}", state)
            for _ in range(ports):
                bridge = self._next("_bridges")
                owner = self._platform(path, f"dfl-fme-bridge.{bridge}.auto", "dfl-fme-bridge")
                self._class(
                    owner, "fpga_bridge", f"br{bridge}", {"name": "DFL FPGA FME Bridge", "state": "enabled"}
                )
                region = self._platform(path, f"dfl-fme-region.{bridge}", "dfl-fme-region")
                name = f"region{self._next('_regions')}"
                self._class(region, "fpga_region", name, {"compat_id": interface_id})
        self.sensors(path)
        return path

    def port(self, container: str, number: int, afu_id: str = NLB) -> str:
        """A port."""
        name = f"dfl-port.{self._next('_ports')}"
        return self._platform(container, name, "dfl-afu", self._port_files(number, afu_id), node=True)

    def sensors(self, engine: str) -> None:
        """The sensors of an engine: ``dfl_fme_thermal`` and ``dfl_fme_power``."""
        heat = {
            "name": "dfl_fme_thermal",
            "temp1_input": "55000",
            "temp1_max": "90000",
            "temp1_crit": "93000",
        }
        heat |= {"temp1_emergency": "95000", "temp1_max_alarm": "0", "temp1_crit_alarm": "0"}
        power = {"name": "dfl_fme_power", "power1_input": "30000000", "power1_max": "60000000"}
        power |= {"power1_crit": "70000000", "power1_max_alarm": "0", "power1_crit_alarm": "0"}
        for files in (heat, power):
            self._class(engine, "hwmon", f"hwmon{self._next('_hwmons')}", files)

    # OPAE

    def opae_container(self, function: str) -> str:
        """What has a card's engine and ports in it."""
        return self._class(function, "fpga", f"intel-fpga-dev.{self._next('_cards')}")

    def opae_engine(self, container: str, *, ports: int = 1, interface_id: str = ARRIA) -> str:
        """A management engine."""
        files = {"ports_num": str(ports), "bitstream_id": "0x23000410010309", "socket_id": "0"}
        files |= {"pr/interface_id": interface_id, "bitstream_metadata": "0x210223"}
        files |= {f"errors/{name}": ZERO for name in ENGINE_ERRORS if name != "fme_errors"}
        files |= {f"errors/fme-errors/{name}": ZERO for name in ("errors", "first_error", "next_error")}
        files |= {f"thermal_mgmt/threshold{number}_reached": "0" for number in (1, 2)}
        name = f"intel-fpga-fme.{self._next('_engines')}"
        return self._platform(container, name, "intel-fpga-fme", files, node=True)

    def opae_port(self, container: str, number: int, afu_id: str = NLB) -> str:
        """A port."""
        name = f"intel-fpga-port.{self._next('_ports')}"
        return self._platform(container, name, "intel-fpga-afu", self._port_files(number, afu_id), node=True)

    def _port_files(self, number: int, afu_id: str) -> Mapping[str, str]:
        files = {"id": str(number), "afu_id": afu_id, "power_state": ZERO, "ltr": "0"}
        files |= {"ap1_event": "0", "ap2_event": "0", "errors/errors": ZERO, "errors/first_error": ZERO}
        return files | {"errors/first_malformed_req": f"0x{0:032x}"}

    def _platform(
        self,
        parent: str,
        name: str,
        driver: str,
        files: Mapping[str, str] | None = None,
        *,
        node: bool = False,
    ) -> str:
        path = f"{parent.removeprefix('/sys/devices/')}/{name}"
        number = f"244:{self._next('_minors')}" if node else ""
        return self.device(path, "platform", name if node else "", number, files, DRIVER=driver)

    def _class(self, parent: str, subsystem: str, name: str, files: Mapping[str, str] | None = None) -> str:
        return self.device(
            f"{parent.removeprefix('/sys/devices/')}/{subsystem}/{name}", subsystem, files=files
        )

    def _next(self, counter: str) -> int:
        number: int = getattr(self, counter)
        setattr(self, counter, number + 1)
        return number
