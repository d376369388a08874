"""The options of the backend. Fields in snake_case are the YAML's keys in camelCase."""

from __future__ import annotations

from enum import StrEnum

from devhost.backend import option
from devhost.backend.frozen import frozen


class VerbsProbe(StrEnum):
    """When devices are opened through pyverbs."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@frozen
class RdmaOptions:
    """The keys under ``backends.rdma``."""

    ignore_port_state: bool = option(False, "Adapters without an active port count as healthy.")
    verbs_probe: VerbsProbe = option(
        VerbsProbe.AUTO,
        "Whether each resync opens every adapter through pyverbs: `auto` if pyverbs is installed, "
        "`always` (logs a warning if it is not), or `never`.",
    )
