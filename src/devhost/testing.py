"""The former name of the package ``devhost_testing``, for one release: its modules, by these names."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NEW = "devhost_testing"
_TEXT = f"{__name__} has become {NEW}, which is in the package devhost-testing"

try:
    importlib.import_module(NEW)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{_TEXT} (pip install devhost-testing)", name=NEW) from error
warnings.warn(_TEXT, DeprecationWarning, stacklevel=2)


class _Renamed(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"{NEW}{spec.name.removeprefix(__name__)}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state  # the import system has replaced it


__path__: list[str] = []
sys.meta_path.insert(0, _Renamed())
