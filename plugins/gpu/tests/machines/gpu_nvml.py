"""A scriptable machine behind the stub NVML library (``stub.c``): GPUs, MIG devices, links, faults, events.

The library is a stub: it answers from a file that this module writes, for speed, and for faults that cannot
be provoked. Its answers have the layout and the numbers of NVIDIA's public ``nvml.h``.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_mig import MODELS

SOURCE = Path(__file__).parents[1] / "nvml_stub" / "stub.c"
LIBRARY = "libnvidia-ml.so.1"
XID = 8
"""``nvmlEventTypeXidCriticalError``."""

Fields = dict[str, object]


def compiler() -> str | None:
    """The C compiler that builds the library, if this machine has one."""
    return shutil.which("cc") or shutil.which("gcc")


def build(directory: Path) -> Path:
    """Builds the library into a directory.

    Raises:
        subprocess.CalledProcessError: the compiler refuses it.
    """
    target = directory / LIBRARY
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-pthread", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run([*command, "-o", str(target), str(SOURCE)], check=True, capture_output=True, text=True)
    return target


@dataclass
class Nvml:
    """The state that the library reports. Change the values, then call :meth:`write`.

    ``gpus`` and ``migs`` are keyed by UUID; a MIG device's ``parent`` is a GPU's UUID. A missing field is one
    that the hardware does not support.
    """

    file: Path
    system: Fields = field(
        default_factory=lambda: {"driver": "570.124.06", "nvml": "12.570.124.06", "cuda": 12080}
    )
    gpus: dict[str, Fields] = field(default_factory=dict)
    migs: dict[str, Fields] = field(default_factory=dict)
    links: list[Fields] = field(default_factory=list)
    near: list[Fields] = field(default_factory=list)
    faults: list[Fields] = field(default_factory=list)
    events: list[Fields] = field(default_factory=list)
    loaded: bool = True
    """Whether the driver is loaded; without it nvmlInit fails."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables by which the library finds the file."""
        return {"NVML_STUB": str(self.file)}

    @property
    def open_marker(self) -> Path:
        """The file that a process has open while it uses the library, in place of ``/dev/nvidiactl``."""
        return self.file.with_name(f"{self.file.name}.open")

    def gpu(self, minor: int, bus: str, **more: object) -> str:
        """Adds a GPU like an A100 80GB and gives its UUID."""
        uuid = str(more.pop("uuid", f"GPU-{minor:08x}-0000-4000-8000-{minor:012x}"))
        self.gpus[uuid] = {
            "minor": minor,
            "bus": bus,
            "name": "NVIDIA A100-SXM4-80GB",
            "device": "0x20B210DE",
            "memory": 80 << 30,
            "cc": "8.0",
            "arch": 7,
            "brand": 14,
            "mig": 0,
            "max_mig": 7,
            "remapped": "0,0,0,0",
            "field230": 0,
            **more,
        }
        return uuid

    def mig(self, parent: str, gi: int, ci: int, profile: str, **more: object) -> str:
        """Adds a MIG device to a GPU, whose MIG mode goes on, and gives its UUID."""
        number = sum(1 for mig in self.migs.values() if mig["parent"] == parent)
        uuid = str(more.pop("uuid", f"MIG-{parent[4:12]}-0000-5000-8000-{gi:06x}{ci:06x}"))
        self.gpus[parent]["mig"] = 1
        self.migs[uuid] = {
            "parent": parent,
            "index": number,
            "gi": gi,
            "ci": ci,
            "name": f"{self.gpus[parent]['name']} MIG {profile}",
            **more,
        }
        return uuid

    @property
    def made(self) -> Path:
        """The file with the MIG instances that the driver has. A test that deletes it reboots the machine."""
        return self.file.with_name(f"{self.file.name}.made")

    def instances(self) -> list[dict[str, str]]:
        """The GPU instances and MIG devices that the driver has: the lines ``gi`` and ``mig``."""
        lines = self.made.read_text().splitlines() if self.made.exists() else []
        return [
            {"word": word, **dict(field.split("=", 1) for field in fields)}
            for word, *fields in (line.split("\t") for line in lines)
        ]

    def partition(self, gpu: str, profile: str, start: int, gi: int = 0) -> str:
        """Creates a GPU instance and a MIG device, as an administrator does; the MIG device's UUID."""
        found = next(one for one in MODELS[str(self.gpus[gpu]["model"])] if one.name == profile)
        taken = [one for one in self.instances() if one.get("gpu", one.get("parent")) == gpu]
        gi = gi or 1 + max((int(one["id"]) for one in taken if one["word"] == "gi"), default=0)
        uuid = f"MIG-{gpu[4:12]}-0000-5000-8000-{gi:06x}{0:06x}"
        place = {"start": start, "size": found.size}
        lines = [
            _line("gi", {"key": f"{gpu}/{gi}", "gpu": gpu, "id": gi, "profile": found.id, **place}),
            _line(
                "mig",
                {
                    "uuid": uuid,
                    "parent": gpu,
                    "index": sum(one["word"] == "mig" for one in taken),
                    "gi": gi,
                    "ci": 0,
                    "compute_profile": {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[found.slices],
                    "name": f"{self.gpus[gpu]['name']} MIG {profile}",
                    "profile_id": found.id,
                    **place,
                    "memory": found.memory << 20,
                    "memory_mib": found.memory,
                    "multiprocessors": found.sm,
                    "gi_slices": found.slices,
                    "ci_slices": found.slices,
                    "copy": found.copy,
                    "decoder": found.decoder,
                    "jpeg": found.jpeg,
                    "ofa": found.ofa,
                },
            ),
        ]
        with self.made.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        return uuid

    def remove(self, uuid: str) -> None:
        """Destroys a MIG device and its GPU instance, as an administrator does."""
        mig = next(one for one in self.instances() if one.get("uuid") == uuid)
        key = f"{mig['parent']}/{mig['gi']}"
        kept = [one for one in self.instances() if uuid != one.get("uuid") and key != one.get("key")]
        part = self.made.with_name(f"{self.made.name}.part")
        part.write_text("".join(f"{_line(one['word'], one)}\n" for one in kept))
        part.replace(self.made)

    def link(self, a: str, b: str, count: int = 1) -> None:
        """Joins two GPUs, or one and ``"switch"``, by NVLinks."""
        self.links.append({"a": a, "b": b, "count": count})

    def fault(self, call: str, gpu: str = "", error: int = 0, hang: float = 0.0, crash: str = "") -> Fields:
        """Makes a call (``"*"``: every one) fail, or hang for seconds or until the fault is removed again.

        With ``crash``, the process ends ``before`` or ``after`` the call; the latter if it creates or
        destroys an instance.
        """
        fault: Fields = {"call": call, "error": error, "hang_ms": int(hang * 1000)}
        if crash:
            fault["crash"] = {"before": 1, "after": 2}[crash]
        if gpu:
            fault["gpu"] = gpu
        self.faults.append(fault)
        self.write()
        return fault

    def fix(self, fault: Fields) -> None:
        """Ends a fault."""
        self.faults.remove(fault)
        self.write()

    def event(self, gpu: str, data: int, kind: int = XID, **more: object) -> None:
        """Adds an event of a GPU, by default an Xid."""
        self.events.append({"word": "event", "gpu": gpu, "type": kind, "data": data, **more})
        self.write()

    def system_event(self, kind: int, gpu: int = 0) -> None:
        """The driver binds (2) or unbinds (1) a GPU."""
        self.events.append({"word": "sysevent", "type": kind, "gpu": gpu})
        self.write()

    def write(self) -> None:
        """Writes the state to the file of the library."""
        lines = [_line("system", self.system)] if self.loaded else []
        lines += [_line("gpu", {"uuid": uuid, **fields}) for uuid, fields in self.gpus.items()]
        lines += [_line("mig", {"uuid": uuid, **fields}) for uuid, fields in self.migs.items()]
        models = sorted({str(gpu["model"]) for gpu in self.gpus.values() if "model" in gpu})
        lines += [
            _line("profile", {"model": model, **one.fields}) for model in models for one in MODELS[model]
        ]
        for word, members in (("link", self.links), ("near", self.near), ("fault", self.faults)):
            lines += [_line(word, fields) for fields in members]
        for number, fields in enumerate(self.events, 1):
            lines.append(_line(str(fields["word"]), {"seq": number, **fields}))
        part = self.file.with_name(f"{self.file.name}.part")
        part.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
        part.replace(self.file)


def _line(word: str, fields: Mapping[str, object]) -> str:
    return "\t".join([word, *(f"{key}={value}" for key, value in fields.items() if key != "word")])
