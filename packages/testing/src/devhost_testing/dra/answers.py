"""What a driver answers for claims, and what a kubelet makes of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devhost.backend.errors import DevhostError

_CDI_NAME = re.compile(
    r"(?P<kind>[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?)"
    r"=(?P<name>[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?)"
)
"""A qualified name. Source: the CDI specification, "CDI JSON Specification", ``kind`` and ``devices``."""


class Violation(DevhostError):
    """A driver does what the protocol does not allow."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim, as a kubelet names it to drivers.

    ``requests`` are the names of its requests; with them, the names in answers are checked.
    """

    namespace: str
    name: str
    uid: str
    requests: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"ResourceClaim {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """One device of a prepared claim. Without ``requests``, it is for all of them."""

    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_names: tuple[str, ...]
    share: str = ""


def prepared(claims: Sequence[Claim], answer: Any) -> tuple[dict[str, list[Prepared]], dict[str, str]]:
    """The devices of each claim by uid, and the errors of the others, in a ``NodePrepareResourcesResponse``.

    Raises ``Violation`` if a kubelet refuses it, or gives containers what they must not have.
    """
    _complete(claims, answer.claims)
    errors = {claim.uid: answer.claims[claim.uid].error for claim in claims}
    found = {
        claim.uid: [_device(claim, one) for one in answer.claims[claim.uid].devices]
        for claim in claims
        if not errors[claim.uid]
    }
    for claim in claims:
        _names_once(claim, found.get(claim.uid, ()))
    return found, {uid: error for uid, error in errors.items() if error}


def released(claims: Sequence[Claim], answer: Any) -> dict[str, str]:
    """The errors of an answer to Unprepare, by uid. Raises ``Violation`` if a kubelet refuses it."""
    _complete(claims, answer.claims)
    return {claim.uid: error for claim in claims if (error := answer.claims[claim.uid].error)}


def cdi_names(devices: Iterable[Prepared], request: str) -> list[str]:
    """What a container gets that uses one request of a claim; all of them if ``request`` is empty."""
    return [
        name
        for one in devices
        if not request or not one.requests or request in one.requests
        for name in one.cdi_names
    ]


def _complete(claims: Sequence[Claim], answered: Mapping[str, Any]) -> None:
    missing = [str(claim) for claim in claims if claim.uid not in answered]
    if missing:
        raise Violation(f"the answer skips {', '.join(missing)}")
    if others := sorted(answered.keys() - {claim.uid for claim in claims}):
        raise Violation(f"the answer has the uid {others[0]!r}, which was not in the call")


def _device(claim: Claim, one: Any) -> Prepared:
    for what, value in (("pool", one.pool_name), ("device", one.device_name)):
        if not value:
            raise Violation(f"a device of {claim} has no {what} name")
    name = f"device {one.pool_name}/{one.device_name} of {claim}"
    for request in one.request_names:
        if "/" in request:
            raise Violation(
                f"{name} is for {request!r}", "name the request without its subrequest, and thus without /"
            )
        if claim.requests and request not in claim.requests:
            raise Violation(f"{name} is for the request {request!r}, which the claim does not have")
    for cdi_name in one.cdi_device_ids:
        if _CDI_NAME.fullmatch(cdi_name) is None:
            raise Violation(f"{name} has the CDI name {cdi_name!r}", "write vendor/class=name")
    share = getattr(one, "share_id", "")  # not in v1beta1
    return Prepared(
        one.pool_name, one.device_name, tuple(one.request_names), tuple(one.cdi_device_ids), share
    )


def _names_once(claim: Claim, devices: Sequence[Prepared]) -> None:
    """The kubelet does not remove repeated names, and reports health by the first name of a device."""
    first: dict[str, Prepared] = {}
    for one in devices:
        if one.cdi_names and first.setdefault(one.cdi_names[0], one) is not one:
            raise Violation(
                f"two devices of {claim} begin with the CDI name {one.cdi_names[0]}",
                "give each device a separate first name",
            )
    for request in claim.requests or ("",):
        names = cdi_names(devices, request)
        if twice := next(_repeated(names), ""):
            of = f"request {request!r} of {claim}" if request else str(claim)
            raise Violation(f"{of} has the CDI name {twice} twice")


def _repeated(names: Iterable[str]) -> Iterator[str]:
    seen = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)
