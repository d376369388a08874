"""What differs between two mappings whose unchanged values are the same objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from operator import eq, is_not
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def differences(before: Mapping[K, V], now: Mapping[K, V]) -> dict[K, V | None]:
    """The values of ``now`` that are new or other objects, by key, and ``None`` for keys that are gone.

    Usually the keys are the same and in the same order. Then Python executes nothing for each of them: ten
    thousand take less than a millisecond.
    """
    if before is now:
        return {}
    if len(before) == len(now) and all(map(eq, before, now)):
        return dict(compress(now.items(), map(is_not, now.values(), before.values())))
    found: dict[K, V | None] = {key: value for key, value in now.items() if before.get(key) is not value}
    found.update((key, None) for key in before if key not in now)
    return found
