"""What importers share of YAML: documents within strings, and text written so that YAML reads it back."""

from __future__ import annotations

import json
import re

from devhost.config.diagnostics import Diagnostics, Place
from devhost.config.document import Node, Scalar, parse

IF_EMPTY = "is it the right file?"
"""The hint for an empty document of another plugin."""

_PLAIN = re.compile(r"[/A-Za-z][A-Za-z0-9_./-]*")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def embedded(node: Scalar, place: Place) -> tuple[Node, Place]:
    """The document in a string, and a place for diagnostics about it.

    They are collected by themselves (``place.diagnostics`` of the new place), and name the string by its line
    and path before their own line and column, which count from the string's beginning.

    Raises:
        ConfigError: the string is not YAML; JSON always is.
    """
    inner = Diagnostics(f"{place.diagnostics.file}:{node.mark.line}: {place.path}")
    data = untabbed(node.text.encode(errors="surrogatepass"))
    return parse(data, inner, if_empty=IF_EMPTY), Place(inner)


def untabbed(data: bytes) -> bytes:
    """JSON that is YAML too: it may be indented with tabs, which YAML refuses.

    A string of JSON cannot hold one as it is (RFC 8259, section 7), so only space is exchanged for space.
    """
    return data.replace(b"\t", b" ") if data.lstrip()[:1] in (b"{", b"[") else data


def text(value: str) -> str:
    """A string as YAML reads it back, without quotes where it needs none."""
    if _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return quoted(value)


def quoted(value: str) -> str:
    """A string in double quotes as YAML reads it back; what does not print is escaped."""
    return json.dumps(value, ensure_ascii=not value.isprintable()).replace("\x7f", "\\u007f")
