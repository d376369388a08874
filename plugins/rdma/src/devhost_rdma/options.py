"""The options of the backend. Fields in snake_case are the YAML's keys in camelCase."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from devhost.backend import option


class VerbsProbe(StrEnum):
    """When devices are also asked through pyverbs."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class RdmaOptions:
    """The keys under ``backends.rdma``."""

    ignore_port_state: bool = option(
        False, "Whether adapters without an active port count as healthy: for those that are cabled later."
    )
    verbs_probe: VerbsProbe = option(
        VerbsProbe.AUTO,
        "Whether each resync also opens every adapter through pyverbs and asks it how it is: `auto` where "
        "pyverbs is installed, `always` also says in the log when it is not, `never`.",
    )
