"""A backend of every kind of attribute and option, in a catalog made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import HealthCheck, settings
from kit.backend import Plain

from devhost.backend import Attribute, Backend, OptionError, option
from devhost.backend.errors import ConfigError, Diagnostic
from devhost.config import loads
from devhost.discovery.catalog import Catalog, Installed, Refusal
from devhost.planning.settings import Settings

# a busy machine is no fault of the code under test
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


class Mode(StrEnum):
    FAST = "fast"
    SAFE = "safe"


@dataclass(frozen=True)
class Group:
    paths: list[str] = option(meaning="Globs of nodes.", example=["/dev/x*"])
    count: int = option(1, "How often.")

    def __post_init__(self) -> None:
        if not self.paths:
            raise OptionError("has no paths", key="paths", hint="name one")
        for n, path in enumerate(self.paths):
            if not path.startswith("/"):
                raise OptionError(f"{path} is relative", key=f"paths[{n}]", hint="begin with /")
        if self.count == 13:
            raise ValueError("13 is unlucky")
        if self.count == 14:
            raise RuntimeError("boom\nsecond line")


@dataclass(frozen=True)
class CardOptions:
    """What the card backend can be told."""

    driver_root: Path = option(Path("/"), "Where the driver is.", example="/run/driver")
    level: Literal["low", "high"] = option("low", "How much.")
    mode: Mode = option(Mode.FAST, "Which way.")
    groups: tuple[Group, ...] = option((), "Nodes handed out together.")
    env: dict[str, str] = option({}, "Variables.")
    timeout: float = option(1.5, "Seconds.")
    limit: int | None = option(None, "At most.")
    verbose: bool = option(False, "Say more.")
    node: str | Group = option("/dev/null", "A path, or a group.")
    names: list[str] | str = option("x", "One or several.")


@dataclass(frozen=True)
class Needy:
    token: str = option(meaning="A secret.", example="abc")


class Card(Plain):
    name = "card"
    Options: ClassVar[type] = CardOptions
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "vendor": Attribute(str, "Who made it.", "intel"),
        "idVendor": Attribute(str, "USB vendor id.", "1a86", hex=True),
        "pKey": Attribute(str, "Partition key.", "0x7fff", hex=True),
        "afuId": Attribute(str, "Accelerator function.", "d8424dc4a4a3c413f89e433683f9040b", hex=True),
        "numaNode": Attribute(int, "NUMA node.", 0),
        "virtual": Attribute(bool, "Whether it is virtual.", False),
        "links": Attribute(list, "Links of the node.", ("/dev/a",)),
        "path": Attribute(str, "Path of the node.", "/dev/b", begins="/dev/", also="links"),
        "driver": Attribute(str, "Its driver.", "nvme", plain=True),
        "address": Attribute(str, "Its PCI address.", "0000:3b:00.0", hex=True),
        "kind": Attribute(str, "What it is.", "vf", words=("pf", "vf")),
        "modes": Attribute(list, "What it can.", ("fast",), words=("fast", "safe")),
        "ID_*": Attribute(str, "A udev property.", "x"),
        "sysattr.*": Attribute(str, "A sysfs attribute.", "1"),
    }


class Other(Card):
    name = "other"
    Options: ClassVar[type] = Needy


def installed(*backends: type[Backend]) -> dict[str, Installed]:
    return {b.name: Installed(b, f"devhost-{b.name}", "1.0", ("devhost_backends",)) for b in backends}


CATALOG = Catalog(
    installed(Card, Other),
    (Refusal("devhost-broken", "0.3", "ImportError: libbroken.so is not there", "broken"),),
)

Reader = Callable[[str], Settings]
Complainer = Callable[[str], tuple[Diagnostic, ...]]


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return CATALOG


@pytest.fixture(scope="session")
def read() -> Reader:
    """Reads a whole configuration."""
    return lambda text: loads(text, "f.yaml", lambda _paths, _wanted: CATALOG)


@pytest.fixture(scope="session")
def complaints(read: Reader) -> Complainer:
    """The complaints about a configuration; it must have some."""

    def run(text: Any) -> tuple[Diagnostic, ...]:
        with pytest.raises(ConfigError) as caught:
            read(text)
        assert caught.value.exit_code == 2
        for complaint in caught.value.diagnostics:
            assert str(complaint).isprintable()
            assert len(str(complaint)) < 1800
        return caught.value.diagnostics

    return run


@pytest.fixture(scope="session")
def one() -> Callable[[str], str]:
    """A configuration with one resource that has these further keys, in flow style."""
    return lambda body: f"version: 1\nresources:\n- {{name: a.b/c, backend: card, {body}}}\n"
