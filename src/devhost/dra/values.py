"""Values that the API server sends: every one is checked where it is read, and a wrong one is named.

A missing value, or ``null``, is the empty value of its kind, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from devhost.backend.errors import DevhostError

T = TypeVar("T")


class Malformed(DevhostError):
    """The API server sent a value that Kubernetes would not send."""


@dataclass(frozen=True, slots=True)
class Json:
    """A value of an API object; ``what`` is the object, and ``path`` the place of the value in it."""

    value: Any
    what: str
    path: str = ""

    def at(self, key: str) -> Json:
        """The value of a key; that of a missing one is ``None``."""
        return Json(self.mapping().get(key), self.what, f"{self.path}.{key}" if self.path else key)

    def mapping(self) -> Mapping[str, Any]:
        """It as an object."""
        return self._of(dict, {}, "an object")

    def items(self, key: str) -> list[Json]:
        """The values of the list below a key."""
        there = self.at(key)
        values = there._of(list, [], "a list")
        return [Json(value, self.what, f"{there.path}[{n}]") for n, value in enumerate(values)]

    def text(self, key: str) -> str:
        """The text below a key."""
        return self.at(key)._of(str, "", "text")

    def number(self, key: str) -> int:
        """The whole number below a key."""
        there = self.at(key)
        if isinstance(there.value, bool):
            raise there._flaw("is not a whole number")
        return there._of(int, 0, "a whole number")

    def required(self, key: str) -> str:
        """The text below a key, which must not be empty."""
        if not (text := self.text(key)):
            raise self.at(key)._flaw("is missing")
        return text

    def _of(self, kind: type[T], default: T, noun: str) -> T:
        if self.value is None:
            return default
        if not isinstance(self.value, kind):
            raise self._flaw(f"is not {noun}")
        return self.value

    def _flaw(self, flaw: str) -> Malformed:
        return Malformed(f"{self.path} of {self.what} {flaw}" if self.path else f"{self.what} {flaw}")
