"""YAML for all importers: documents in strings, and quoting of text."""

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

    These diagnostics are collected separately (``place.diagnostics`` of the new place). They name the line
    and path of the string, then the line and column within it.

    Raises:
        ConfigError: the string is not YAML; JSON always is.
    """
    inner = Diagnostics(f"{place.diagnostics.file}:{node.mark.line}: {place.path}")
    data = untabbed(node.text.encode(errors="surrogatepass"))
    return parse(data, inner, if_empty=IF_EMPTY), Place(inner)


def untabbed(data: bytes) -> bytes:
    """JSON as valid YAML: tabs, which YAML refuses for indentation, become spaces.

    Strings in JSON cannot contain a literal tab (RFC 8259, section 7), so only whitespace changes.
    """
    return data.replace(b"\t", b" ") if data.lstrip()[:1] in (b"{", b"[") else data


def text(value: str) -> str:
    """A string for YAML, with quotes only if it needs them."""
    if _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return quoted(value)


def quoted(value: str) -> str:
    """A string for YAML in double quotes; characters that do not print are escaped."""
    return json.dumps(value, ensure_ascii=not value.isprintable()).replace("\x7f", "\\u007f")
