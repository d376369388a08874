"""What the API server answers: failures in words, ResourceClaims, and values, checked where they are read.

A missing value, or ``null``, is the empty value of its kind, as in Kubernetes.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, TypeVar
from urllib.parse import quote

from devhost.backend.errors import DevhostError, cut_bytes, excerpt
from devhost.backend.frozen import frozen
from devhost.backend.model import ClaimHolder
from devhost.planning.amounts import whole
from devhost.runtime.log import printable
from devhost.runtime.reconciler import Retry

T = TypeVar("T")

API: Final = "/apis/resource.k8s.io/v1"
"""Where the API server has ResourceClaims since Kubernetes 1.34."""

POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that was made from a template: the name that its pod has for it."""

LONGEST_WISH = 60.0
"""Seconds that the API server may make devhost wait (``Retry-After``); a longer wish is shortened."""

MESSAGE = 1024
"""Most bytes of the message of a condition, and of one about health; the kubelet cuts the latter there."""

NEEDS = "DRA needs Kubernetes 1.34 or newer, with this API enabled"

ADDRESS = "check that its address is that of an API server"

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/?]+))/(?P<version>[^/?]+)"
    r"(?:/namespaces/[^/?]+)?/(?P<resource>[^/?]+)(?:/(?P<name>[^/?]+))?"
)
_DENIED = re.compile("denied (the )?request")
"""The texts of policies (validating/dispatcher.go) and webhooks (webhook/errors/statuserror.go)."""

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_CLIENT_CERTIFICATE = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED", "UNKNOWN_CA")


class ApiFailure(Retry):
    """A request to the API server has failed, or nothing is known from its answer: worth another try."""


class ApiError(ApiFailure):
    """The API server refused a request: HTTP status, ``reason`` and ``message`` of the returned Status.

    ``retry_after`` is seconds until the server wants the request again (429, 503), if it gave any, ``source``
    where devhost has its credentials from.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        text: str = "",
        retry_after: float | None = None,
        request: ApiRequest | None = None,
        source: str = "",
    ) -> None:
        self.status = status
        self.reason = reason
        self.text = text
        self.retry_after = retry_after
        self.no_api = status == 404 and request is not None and request.needs_api(reason, text)
        """Whether the API itself is missing, so that nothing is known of an object."""
        words = self._words(request or ApiRequest("GET", "an object"), source)
        super().__init__(*words, after=min(retry_after or 0.0, LONGEST_WISH))

    @property
    def denied(self) -> bool:
        """Whether a policy or a webhook refuses this object; devhost may have the right to others."""
        return self.status == 403 and _DENIED.search(self.text) is not None

    @property
    def absent(self) -> bool:
        """Whether the API server has no such object."""
        return self.status == 404 and not self.no_api

    def _words(self, request: ApiRequest, source: str) -> tuple[str, str]:
        text = excerpt(self.text)
        if self.no_api:
            return f"the API server has no {request.api}", NEEDS if request.group else "check its address"
        if self.status == 401:
            reason = "the API server does not accept devhost's credentials (HTTP 401)"
            return reason, f"renew the token or the client certificate{f' in {source}' if source else ''}"
        if self.status == 403:
            hint = "" if self.denied else "devhost's ClusterRole must allow it"
            return f"permission denied to {request}: {text or 'HTTP 403'}", hint
        if self.status == 410:
            return f"the API server cannot {request} from this version on (HTTP 410): {text}", ""
        return f"the API server refused to {request} (HTTP {self.status}): {text or 'no reason given'}", ""


class Unreachable(ApiFailure):
    """The API server did not answer, or something else than an API server did."""


class ApiRequest:
    """A request, as roles name it: ``list resourceslices``."""

    def __init__(self, method: str, path: str, *, watch: bool = False) -> None:
        found = _PATH.match(path)
        self.group = found["group"] or "" if found else ""
        self._resource = found["resource"] if found else path
        self._named = not found or bool(found["name"])
        reading = "get" if self._named else "watch" if watch else "list"
        self._verb = _VERBS.get(method, reading)
        self.api = ""
        """The API that it needs; empty if its path is none of an API."""
        if found:
            self.api = f"{self.group}/{found['version']}" if self.group else f"API {found['version']}"

    def __str__(self) -> str:
        return f"{self._verb} {self._resource}"

    def needs_api(self, reason: str, text: str) -> bool:
        """Whether a 404 with this Status means that the API is missing, and not an object.

        A server answers an unknown path with plain text; proxies may use the text of client libraries.
        """
        unknown = not reason or text == "the server could not find the requested resource"
        return bool(self.api) and (unknown or not self._named)


def connection_failure(error: BaseException | None) -> tuple[str, str]:
    """The reason and the hint for an error of a connection; no reason for any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "the certificate authority in devhost's credentials must be the API server's"
        return f"its certificate is not accepted: {excerpt(error.verify_message)}", hint
    if isinstance(error, ssl.SSLError):
        alert = str(error.reason or "")
        if any(name in alert for name in _CLIENT_CERTIFICATE):
            return "it does not accept the client certificate", "renew the one in devhost's credentials"
        return "the TLS handshake failed", ADDRESS
    if isinstance(error, OSError):
        number = error.errno or 0
        # asyncio's own texts have Python tuples; numbers below 0 are those of the name resolver
        text = os.strerror(number) if number > 0 else error.strerror or str(error)
        return excerpt(text) or "the connection failed", "check that it runs, its address, and the network"
    return "", ""


class Malformed(ApiFailure):
    """The API server sent a value that Kubernetes would not send."""


@frozen
class Json:
    """A value of an API object; ``what`` is the object, and ``path`` the place of the value in it."""

    value: Any
    what: str
    path: str = ""

    def at(self, key: str) -> Json:
        """The value of a key; that of a missing one is ``None``."""
        return Json(self.mapping().get(key), self.what, f"{self.path}.{key}" if self.path else key)

    def mapping(self) -> Mapping[str, Any]:
        return self._of(dict, {}, "an object")

    def items(self, key: str) -> list[Json]:
        there = self.at(key)
        values = there._of(list, [], "a list")
        return [Json(value, self.what, f"{there.path}[{n}]") for n, value in enumerate(values)]

    def text(self, key: str) -> str:
        there = self.at(key)
        text = there._of(str, "", "text")
        if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
            raise there._flaw("is not text")  # half a character, which nothing can encode
        return text

    def number(self, key: str) -> int:
        there = self.at(key)
        if isinstance(there.value, bool):
            raise there._flaw("is not a whole number")
        return there._of(int, 0, "a whole number")

    def quantity(self, key: str) -> int:
        """The quantity below a key, in whole numbers; one that cannot be read is no 0."""
        if (amount := whole(self.text(key))) is None:
            raise self.at(key)._flaw("is no quantity that devhost knows")
        return amount

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


def cut(message: str) -> str:
    """A printable message of at most :data:`MESSAGE` bytes."""
    return cut_bytes(printable(message), MESSAGE)


def claim_path(claim: ClaimHolder) -> str:
    return f"{API}/namespaces/{quote(claim.namespace, '')}/resourceclaims/{quote(claim.name, '')}"


class ClaimError(DevhostError):
    """A claim cannot be prepared; the kubelet shows the text in an event of the pod."""


@frozen(slots=True)
class Toleration:
    """A toleration of device taints, as in ``core/v1``: an empty ``key`` or ``effect`` matches every one."""

    key: str = ""
    operator: str = "Equal"
    effect: str = ""

    def tolerates(self, key: str, effect: str) -> bool:
        """Whether it tolerates a taint with this key and any value.

        The value names what is wrong with a device, which may change between scheduling and now.
        """
        any_key = not self.key and self.operator == "Exists"
        return (any_key or self.key == key) and self.effect in ("", effect)


@frozen(slots=True)
class AllocatedDevice:
    """One device that was allocated to a claim.

    ``request`` is as in the allocation: ``request`` or ``request/subrequest``. ``consumed`` is the capacity
    that this allocation uses, as quantities.
    """

    request: str
    pool: str
    device: str
    admin: bool = False
    share: str = ""
    consumed: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()

    def tolerates(self, key: str, effect: str) -> bool:
        """Whether the device may be used although it has such a taint."""
        return any(one.tolerates(key, effect) for one in self.tolerations)


@frozen(slots=True)
class OpaqueConfig:
    """A configuration for this driver. ``path`` is its place below ``status.allocation.devices``."""

    path: str
    from_class: bool
    requests: tuple[str, ...]
    parameters: Any

    def concerns(self, request: str) -> bool:
        """Whether it is for a request, given as in :attr:`AllocatedDevice.request`."""
        return not self.requests or not {request, request.partition("/")[0]}.isdisjoint(self.requests)


@frozen(slots=True)
class ClaimObject:
    """A ResourceClaim: what was allocated of this driver, in order. ``allocated``: whether anything was.

    ``pods`` are the names of the pods that it is reserved for. ``pod_claim`` is the name that its pod has for
    it, if it was made from a template. ``others`` are the devices of other drivers, each with its driver.
    """

    uid: str
    allocated: bool = False
    devices: tuple[AllocatedDevice, ...] = ()
    config: tuple[OpaqueConfig, ...] = ()
    pods: tuple[str, ...] = ()
    pod_claim: str = ""
    others: tuple[tuple[str, AllocatedDevice], ...] = ()


def read_claim(body: object, driver: str) -> ClaimObject:
    """A ResourceClaim from its JSON; what concerns other drivers is left out.

    Raises ``Malformed`` if it is not a ResourceClaim of ``resource.k8s.io/v1``.
    """
    claim = Json(body, "the ResourceClaim")
    uid = claim.at("metadata").required("uid")
    allocation = claim.at("status").at("allocation")
    if allocation.value is None:
        return ClaimObject(uid)
    devices = allocation.at("devices")
    every = [(one.text("driver"), one) for one in devices.items("results")]
    own = [_allocated(one) for name, one in every if name == driver]
    others = [(name, _allocated(one)) for name, one in every if name != driver]
    config = [_config(one) for one in devices.items("config") if one.at("opaque").text("driver") == driver]
    ordered = sorted(config, key=lambda one: not one.from_class)  # stable: the order within a source counts
    reserved = claim.at("status").items("reservedFor")
    pods = tuple(one.text("name") for one in reserved if one.text("resource") == "pods")
    pod_claim = claim.at("metadata").at("annotations").text(POD_CLAIM)
    if not _LABEL.fullmatch(pod_claim):  # it becomes a part of a path
        pod_claim = ""
    return ClaimObject(uid, True, tuple(own), tuple(ordered), pods, pod_claim, tuple(others))


def _allocated(found: Json) -> AllocatedDevice:
    tolerations = (
        Toleration(one.text("key"), one.text("operator") or "Equal", one.text("effect"))
        for one in found.items("tolerations")
    )
    consumed = found.at("consumedCapacity").mapping()
    return AllocatedDevice(
        found.required("request"),
        found.required("pool"),
        found.required("device"),
        found.at("adminAccess").value is True,
        found.text("shareID"),
        {name: str(value) for name, value in consumed.items()},
        tuple(tolerations),
    )


def _config(found: Json) -> OpaqueConfig:
    return OpaqueConfig(
        found.path.removeprefix("status.allocation.devices."),
        found.text("source") == "FromClass",
        tuple(str(one.value) for one in found.items("requests")),
        found.at("opaque").at("parameters").value,
    )
