"""The plan for what exists, what is configured and what containers hold now."""

from __future__ import annotations

from devhost.allocation.allocations import Allocations, Found
from devhost.planning.plan import Plan, make_plan
from devhost.planning.settings import Settings


def plan_devices(found: Found, settings: Settings, allocations: Allocations) -> Plan:
    """Makes the plan, and makes it again while it shows that containers hold more than was known.

    Args:
        found: every device of every backend.
        settings: the whole configuration.
        allocations: what containers hold; they learn from the plan.
    """
    devices = {backend: tuple(known.values()) for backend, known in found.items()}
    allocations.observe(found, settings)
    plan = make_plan(devices, settings, allocations.held())
    while allocations.learn(plan):
        plan = make_plan(devices, settings, allocations.held())
    return plan
