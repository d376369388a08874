"""The audit trail as devhost loads it: the drop-in, with options in the environment, and news for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from devhost.backend.model import HEALTHY, ClaimHolder, Device, Holder, unhealthy
from devhost.backend.observe import (
    Allocated,
    Appeared,
    BackendChanged,
    ClaimPrepared,
    ClaimUnprepared,
    ConfigurationRead,
    HealthChanged,
    Held,
    News,
    Released,
    VerdictChanged,
)
from devhost.discovery import catalog
from devhost.discovery.catalog import InstalledObserver

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "observers"
PAGE = ROOT / "docs" / "audit.md"

FRIDAY = 1795773600.0
"""2026-11-27T10:00:00Z."""

GPU, OTHER = "GPU-8dfe9b2c", "GPU-0c1d2e3f"
TRAINING = Holder("ml", "train-0", "main")
CLAIM = ClaimHolder("ml", "train-0-gpu", "7f3c9b1e-5d0a-4c57-9d58-0f1f6a2b3c4d")
ABOUT: dict[str, Any] = {"generation": 1, "resource": "nvidia.com/gpu", "backend": "gpu"}


class Trail:
    """A drop-in in ``place``, writing to ``place/audit/audit.jsonl``."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.file = place / "audit" / "audit.jsonl"
        self._loads = 0
        self._environment = monkeypatch
        monkeypatch.setenv("DEVHOST_AUDIT_FILE", str(self.file))
        monkeypatch.setenv("NODE_NAME", "node7")

    def load(self, **options: object) -> InstalledObserver:
        """The observer of a new process: a file of another name is another module."""
        for name, value in options.items():
            self._environment.setenv(f"DEVHOST_AUDIT_{name.upper()}", str(value))
        self._loads += 1
        directory = self.place / f"start{self._loads}"
        directory.mkdir()
        shutil.copy(EXAMPLES / "audit.py", directory)
        found = catalog.load([directory], points=())
        assert found.refused == ()
        (observer,) = found.observers
        return observer

    def files(self) -> list[Path]:
        """The newest first."""
        return sorted(
            self.file.parent.glob(f"{self.file.name}*"), key=lambda path: (len(path.name), path.name)
        )

    def lines(self) -> list[dict[str, Any]]:
        """Every line of every file, the oldest first. Each must be whole."""
        text = "".join(path.read_text(encoding="utf-8") for path in reversed(self.files()))
        assert text == "" or text.endswith("\n")
        return [json.loads(line) for line in text.splitlines()]

    def events(self) -> list[str]:
        return [str(line["event"]) for line in self.lines()]


def send(observer: InstalledObserver, *news: News, missed: int = 0) -> None:
    observer.call(news[0].hook, news=news, missed=missed)


def held(at: float = FRIDAY, holder: Holder = TRAINING, device: str = GPU) -> Held:
    return Held(at=at, device=Device(device), tokens=(device,), holder=holder, **ABOUT)


def released(at: float = FRIDAY, holder: Holder | None = TRAINING, device: str = GPU) -> Released:
    return Released(at=at, device=Device(device), tokens=(device,), holder=holder, **ABOUT)


def allocated(at: float = FRIDAY, device: str = GPU) -> Allocated:
    return Allocated(at=at, device=Device(device), tokens=(device,), **ABOUT)


def fell(at: float = FRIDAY, reason: str = "Xid 79") -> HealthChanged:
    return HealthChanged(at=at, device=Device(GPU), health=unhealthy(reason), previous=HEALTHY, **ABOUT)


def appeared(*reasons: str | None, at: float = FRIDAY) -> tuple[Appeared, ...]:
    """A device for each reason; those without one are healthy."""
    return tuple(
        Appeared(at=at, device=Device(f"GPU-{n}"), health=unhealthy(why) if why else HEALTHY, **ABOUT)
        for n, why in enumerate(reasons)
    )


def degraded(at: float = FRIDAY, reason: str = "NVML does not answer") -> BackendChanged:
    return BackendChanged(at=at, generation=1, backend="gpu", degraded=True, reason=reason)


def read(*complaints: str, at: float = FRIDAY) -> ConfigurationRead:
    return ConfigurationRead(at=at, generation=2, file="/etc/devhost/devhost.yaml", complaints=complaints)


def prepared(*pods: str, at: float = FRIDAY) -> ClaimPrepared:
    return ClaimPrepared(at=at, device=Device(GPU), claim=CLAIM, pods=pods, shares=1, **ABOUT)


def unprepared(*pods: str, at: float = FRIDAY) -> ClaimUnprepared:
    return ClaimUnprepared(at=at, device=Device(GPU), claim=CLAIM, pods=pods, shares=1, **ABOUT)


def judged(
    *devices: str, in_force: bool = True, reason: str = "fan replaced on Friday", until: float | None = None
) -> VerdictChanged:
    return VerdictChanged(
        at=FRIDAY,
        generation=1,
        in_force=in_force,
        file="cordon-node.json",
        kind="cordon",
        devices=devices,
        reason=reason,
        by="alice",
        since=FRIDAY - 1,
        until=until,
    )


EACH: tuple[News, ...] = (
    allocated(),
    held(),
    released(),
    prepared("train-0"),
    unprepared("train-0"),
    fell(),
    judged("gpu/GPU-8dfe9b2c", until=FRIDAY + 60),
    degraded(),
    read("line 3: no"),
)
"""News of each kind that the trail writes down."""
