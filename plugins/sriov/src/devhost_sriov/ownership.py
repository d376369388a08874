"""Which virtual functions devhost has made: noted in a file, so that it knows them after a restart.

Only those it may remove again. The file lies in ``/run``, which goes with a reboot as they do; what another
boot has left there is not believed either.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from devhost.backend.errors import BackendError
from devhost.backend.sysfs import prefix_of, read_line

FILE = "/run/devhost/virtual-functions.json"
BOOT = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True)
class Made:
    """Virtual functions of one physical function.

    ``name`` is what the configuration called that one, ``driver`` what they were bound to (empty: the
    kernel's choice). ``mark`` tells them from others in their place, and is empty while they are being made.
    """

    name: str
    count: int
    driver: str = ""
    mark: tuple[int, ...] = ()


class Ownership:
    """What devhost has made, by the address of the physical function."""

    def __init__(self, root: Path) -> None:
        self._prefix = prefix_of(root)
        self._path = Path(self._prefix + FILE)

    def read(self) -> dict[str, Made]:
        """What is noted; nothing where the file is missing, broken, or of another boot."""
        try:
            document = json.loads(self._path.read_bytes())
            if document["boot"] != self._boot():
                return {}
            return {
                address: Made(
                    str(one["name"]), int(one["count"]), str(one["driver"]), tuple(map(int, one["mark"]))
                )
                for address, one in document["made"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def write(self, made: Mapping[str, Made]) -> None:
        """Notes all of it anew; of nothing there is no file.

        Raises:
            BackendError: the file cannot be written.
        """
        document = {"boot": self._boot(), "made": {name: asdict(one) for name, one in sorted(made.items())}}
        fresh = self._path.with_suffix(".new")
        try:
            if not made:
                self._path.unlink(missing_ok=True)
                return
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            fresh.write_text(json.dumps(document, indent=1) + "\n")
            os.replace(fresh, self._path)  # noqa: PTH105 - at once: a reader sees the old or the new one
        except OSError as error:
            raise BackendError(
                f"cannot write {FILE}: {error.strerror}; devhost makes no virtual functions it would not "
                "know again"
            ) from error

    def _boot(self) -> str:
        return read_line(f"{self._prefix}{BOOT}")
