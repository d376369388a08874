"""The page around its content: head, style, script, and the policy that allows nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from devhost.backend.frozen import frozen
from devhost.telemetry.document import StatusDocument
from devhost.telemetry.tables import awaits

from .content import content, how_many
from .markup import escaped, joined, tag

_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="16" rx="4" fill="{}"/>'
    '<path d="{}" fill="none" stroke="#fff" stroke-width="2.4" stroke-linecap="round"/></svg>'
)
_HEALTHY = _ICON.format("#0a6b3d", "M4 8.5l2.8 2.8L12 5.5")
_WAITING = _ICON.format("#7a4a00", "M8 4v4.5l2.8 1.8")
_UNHEALTHY = _ICON.format("#b3261e", "M8 3.5v5.5M8 12.3v.1")


@frozen
class Rendering:
    """The part of the page that changes, in one line, and its title and icon."""

    part: Markup
    title: str
    icon: str


def render(document: StatusDocument, node: str, now: datetime, *, pods: bool = True) -> Rendering:
    """A document as HTML. ``node`` is the name of the machine on the page, ``now`` the time for ages."""
    count = how_many(document.problems)
    title = f"({count:,}) {node} · devhost" if count else f"{node} · devhost"
    icon = f"data:image/svg+xml,{quote(_UNHEALTHY if count else _WAITING if awaits(document) else _HEALTHY)}"
    part = tag(
        "div",
        content(document, node, now, pods=pods),
        id="page",
        data_title=title,
        data_icon=icon,
        data_build=_policy_and_build()[1],
    )
    return Rendering(part, title, icon)


def whole(rendering: Rendering) -> bytes:
    """The page as first sent; it is complete without its script."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", escaped(rendering.title)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="robots", content="noindex"),
        tag("link", rel="icon", id="icon", href=rendering.icon),
        tag("style", Markup(_asset("page.css"))),
    )
    without = "Without JavaScript this page does not update itself: reload it."
    body = tag(
        "body",
        tag("a", "Skip to the status", href="#main", class_="skip"),
        tag("noscript", tag("p", without, class_="notice")),
        tag("aside", id="lost", class_="notice", hidden=True, aria_label="Connection lost"),
        rendering.part,
        tag("aside", id="mode", hidden=True, aria_label="Update mode of this page"),
        tag("div", id="announcements", role="log", aria_live="polite", class_="unseen"),
        tag("script", Markup(_asset("page.js"))),
    )
    return joined([Markup("<!doctype html>"), tag("html", head, body, lang="en")]).encode()


def headers() -> Mapping[str, str]:
    """The headers of the page: they allow only its own style and script, and no other connections."""
    return {
        "Content-Security-Policy": _policy_and_build()[0],
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


@cache
def _policy_and_build() -> tuple[str, str]:
    style, script = _digest("page.css"), _digest("page.js")
    policy = (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return policy, (script + style)[::4]


def _digest(name: str) -> str:
    return base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
