"""The taints of unhealthy devices: one for each cause that the entry names, and one for all others. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from devhost.backend.model import Cause, Health

from .naming import MAX_NAME
from .settings import Effect

_LETTERS = re.compile(r"[A-Za-z]+")


def taints_of(driver: str, health: Health, effects: Mapping[Cause, Effect]) -> dict[str, Effect]:
    """The taints of a device by their key, in the domain of its driver; none if it is healthy.

    ``effects`` has that of each cause with its own key. All other causes have the key ``unhealthy``.
    """
    if health.healthy:
        return {}
    own = {cause: effects[cause] for cause in Cause if cause in health.causes and cause in effects}
    if health.causes - own.keys():
        own.setdefault(Cause.UNHEALTHY, effects.get(Cause.UNHEALTHY, Effect.NO_SCHEDULE))
    return {f"{driver}/{cause.value}": effect for cause, effect in own.items()}


def is_tainted(health: Health, effects: Mapping[Cause, Effect]) -> bool:
    """Whether claims that tolerate nothing do not get a device; for ``effects`` see :func:`taints_of`."""
    return any(effect is not Effect.NONE for effect in taints_of("", health, effects).values())


MOST_BEFORE = 4
"""Taints that a device may have before Kubernetes 1.35, where the effect ``None`` does not exist either."""


def taints_before(taints: Mapping[str, Effect]) -> dict[str, Effect]:
    """The most severe of these taints, as far as Kubernetes 1.34 takes them."""
    effective = [(key, effect) for key, effect in taints.items() if effect is not Effect.NONE]
    return dict(sorted(effective, key=lambda one: one[1] is not Effect.NO_EXECUTE)[:MOST_BEFORE])


def taint_value(reason: str | None) -> str:
    """The words of a reason as the value of a taint.

    Without digits: a temperature or a counter in a reason would change the slice all the time.
    """
    value = ""
    for word in _LETTERS.findall(reason or ""):
        longer = f"{value}-{word}" if value else word
        if len(longer) > MAX_NAME:
            break
        value = longer
    return value or Cause.UNHEALTHY.value
