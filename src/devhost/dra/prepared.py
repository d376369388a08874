"""What the kubelet asks for and what it is answered, independent of the protocol's version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from devhost.backend.frozen import frozen


@frozen
class ClaimRef:
    """The name of a ResourceClaim, as the kubelet sends it."""

    namespace: str
    uid: str
    name: str

    def __str__(self) -> str:
        return f"ResourceClaim {self.namespace}/{self.name}"


@frozen
class PreparedDevice:
    """A device that is ready for the containers that use one of the requests.

    Attributes:
        requests: the claim's requests; with a subrequest as ``request/subrequest``.
        cdi_ids: the first one is unique to the device.
        share: the share id of a device that several claims use; empty for any other.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share: str = ""


class ClaimPreparer(Protocol):
    """Prepares claims; an error of one claim is its text, and never an exception."""

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        """By uid: the devices of the claim, or why it cannot be prepared."""
        ...

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """By uid: empty if the claim is released, else why not."""
        ...
