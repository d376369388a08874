"""Resource names: the kubelet's rule for them, and templates such as ``nvidia.com/mig-{profile}``.

The rule is the kubelet's own check of ``RegisterRequest.resource_name`` (``IsExtendedResourceName``
and ``IsQualifiedName`` in k8s.io/kubernetes): a name devhost accepts, the kubelet accepts too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache

from devhost.backend.errors import cut
from devhost.backend.model import NOTHING, AttributeValue
from devhost.backend.sysfs import BDF
from devhost.backend.where import show

SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""A pattern of DNS subdomains (RFC 1123) of any length."""

_DOMAIN = re.compile(SUBDOMAIN)
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_FIELD = re.compile(r"\{([^{}]*)\}")
_BRACES = re.compile(r"\{(RESOURCE-?)\}|[{}]")
_NO_WORD = re.compile(r"[^A-Z0-9]")
_NO_LABEL = re.compile(r"[^a-z0-9]")
_DASHED_BDF = re.compile(r"[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7]")
_HASHED = re.compile(r".*-[0-9a-f]{8}")

MAX_DOMAIN = 253 - len("requests.")
"""The kubelet also checks ``requests.<name>``, which must still be a DNS subdomain."""

MAX_NAME = 63

MAX_SUBDOMAIN = 253
"""The greatest length of a DNS subdomain, such as the name of a Kubernetes object."""

MAX_ATTRIBUTE = 64
"""Bytes of the longest text that is an attribute of a device in a slice (``DeviceAttribute.string``)."""


def problem(name: str) -> str:
    """Why the kubelet would refuse ``name``; empty if it is a valid extended resource name."""
    domain, slash, rest = name.partition("/")
    if not slash:
        return "has no slash: it must read vendor-domain/name"
    if "/" in rest:
        return "has more than one slash"
    if "kubernetes.io/" in name:
        return "is in kubernetes.io, which belongs to Kubernetes itself"
    if name.startswith("requests."):
        return 'starts with "requests.", which Kubernetes keeps for quotas'
    if not domain or len(domain) > MAX_DOMAIN or not _DOMAIN.fullmatch(domain):
        return (
            f"has an illegal domain {_cut(domain)!r}: lower-case letters, digits, '-' and '.' only, "
            f"alphanumeric at both ends of each part, at most {MAX_DOMAIN} characters"
        )
    if not rest or len(rest) > MAX_NAME or not _NAME.fullmatch(rest):
        return (
            f"has an illegal part {_cut(rest)!r} after the slash: letters, digits, '-', '_' and '.' only, "
            f"alphanumeric at both ends, at most {MAX_NAME} characters"
        )
    return ""


def _cut(text: str) -> str:
    """Keeps the rule in a message readable when the name is very long."""
    return cut(text, 80)


@lru_cache(maxsize=1024)
def fields(template: str) -> tuple[str, ...]:
    """The attributes in a name template; empty for a plain name."""
    return tuple(_FIELD.findall(template))


def template_problem(template: str) -> str:
    """What is wrong with a name template, for any attributes; empty if nothing is."""
    bare = _FIELD.sub("x", template)
    if "{" in bare or "}" in bare:
        return "has a brace without its partner"
    if "" in fields(template):
        return "has empty braces: name an attribute between them"
    domain, _, _ = template.partition("/")
    if fields(domain):
        return "has a template before the slash; only the part after it may vary"
    return problem(bare)


def shown(value: AttributeValue, other: Mapping[str, str]) -> str:
    """A value as names have it: ``other`` has the text for some."""
    text = show(value)
    return other.get(text, text)


def expand(
    template: str, attributes: Mapping[str, AttributeValue], other: Mapping[str, str] = NOTHING
) -> str | None:
    """The resource name of a device with these attributes; ``None`` if it lacks one of the fields.

    ``other`` has the text for some values. Values are made valid: ``+`` becomes ``.`` (as in NVIDIA's names
    of MIG profiles), any other invalid character ``-``. A part longer than 63 characters is cut and ends in
    eight hex digits of its hash.
    """
    missing = [name for name in fields(template) if name not in attributes]
    if missing:
        return None
    if not fields(template):
        return template
    domain, _, rest = template.partition("/")
    raw = _FIELD.sub(lambda found: shown(attributes[found[1]], other), rest)
    legal = re.sub(r"[^A-Za-z0-9_.-]", "-", raw.replace("+", "."))
    legal = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", legal)
    if len(legal) > MAX_NAME:
        legal = legal[: MAX_NAME - 9].rstrip("-_.") + "-" + digest(raw)
    return f"{domain}/{legal}" if legal else None


def resource_attribute(resource: str) -> str:
    """The value of the attribute ``resource`` of a device in a slice, by which a DeviceClass selects it.

    It is the resource's name; one that is longer than :data:`MAX_ATTRIBUTE` bytes is cut and ends in eight
    hex digits of its hash.
    """
    if len(resource) <= MAX_ATTRIBUTE:
        return resource
    hashed = digest(resource)
    return f"{resource[: MAX_ATTRIBUTE - 1 - len(hashed)]}-{hashed}"


def digest(text: str, digits: int = 8) -> str:
    """The first hex digits of a text's hash: the end of a name that cannot show the whole text."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:digits]


def looks_hashed(text: str) -> bool:
    """Whether a text ends as a name with a :func:`digest` does."""
    return _HASHED.fullmatch(text) is not None


@lru_cache(1 << 14)  # each plan names every device that claims may get
def slug(text: str, limit: int = MAX_NAME) -> str:
    """A DNS label for the id of a device, another one for every id: ``0000-3b-00-0`` for ``0000:3b:00.0``.

    Letters become lower case and other characters ``-``. The label ends in eight hex digits of a hash unless
    the id can be read from it: unless it is the id itself, or a PCI address. ``limit`` is the most characters
    of the label, at least 12.
    """
    label = _NO_LABEL.sub("-", text.lower()).strip("-")
    readable = label == text and not looks_hashed(text) and not _DASHED_BDF.fullmatch(text)
    if len(label) <= limit and label and (readable or BDF.fullmatch(text)):
        return label
    return f"{label[: limit - 9].rstrip('-') or 'id'}-{digest(text)}"


def is_subdomain(text: str) -> bool:
    """Whether Kubernetes accepts a text as the name of an object such as a node."""
    return len(text) <= MAX_SUBDOMAIN and _DOMAIN.fullmatch(text) is not None


def device_class(resource: str) -> str:
    """The name of the DeviceClass of a resource whose entry gives none: ``gpu.nvidia.com``.

    It is a DNS subdomain (RFC 1123), as Kubernetes demands of object names. Where the part before the domain
    had to be changed or cut for that, it ends in eight hex digits of a hash, as upper case does: names of
    resources that differ in one letter's case keep different classes. ``resource`` is a valid extended
    resource name, without a template.
    """
    domain, _, rest = resource.partition("/")
    labels = re.sub(r"[^a-z0-9.-]", "-", rest.lower()).split(".")
    legal = ".".join(kept for label in labels if (kept := label.strip("-")))
    room = MAX_SUBDOMAIN - 1 - len(domain)
    if legal == rest and len(rest) <= room:
        return f"{rest}.{domain}"
    hashed = digest(resource)
    words = legal[: max(0, room - 1 - len(hashed))].rstrip("-.")
    return f"{words}-{hashed}.{domain}" if words else f"{hashed}.{domain}"


def variable_problem(name: str) -> str:
    """What is wrong with a variable name of a backend; empty if nothing is.

    It may contain ``{RESOURCE}`` and ``{RESOURCE-}`` (see :func:`variable`), and no other brace.
    """
    if not name or "=" in name or "\0" in name:
        return "an unusable variable name"
    if any(found[1] is None for found in _BRACES.finditer(name)):
        return "a brace that is neither {RESOURCE} nor {RESOURCE-} in the variable name"
    return ""


def variable(name: str, resource: str) -> str:
    """The name of a variable in a container that gets devices of ``resource``.

    ``{RESOURCE}`` becomes the resource's name in upper case with ``_`` for every character that is neither a
    letter nor a digit, so that shells can expand it. ``{RESOURCE-}`` keeps the hyphens: some programs expect
    the name as plugins write it that replace only ``/`` and ``.``.
    """
    upper = resource.upper()
    words = {"RESOURCE": _NO_WORD.sub("_", upper), "RESOURCE-": re.sub(r"[^A-Z0-9-]", "_", upper)}
    return _BRACES.sub(lambda found: words.get(found[1], found[0]), name)
