"""A status document as HTML: the part of the page that changes, and the page around it.

The page has its style and script in it, and a policy that allows nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from devhost.backend.errors import few
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import natural
from devhost.telemetry.document import (
    BackendStatus,
    DraDeviceStatus,
    DraStatus,
    DriverStatus,
    EntryStatus,
    HostStatus,
    ProblemStatus,
    ResourceStatus,
    StatusDocument,
    drivers_of,
)
from devhost.telemetry.tables import (
    HIDDEN_POD,
    UNKNOWN_POD,
    awaits,
    capacity,
    container,
    counters,
    empty_entry,
    in_use,
    judged,
    numbered,
    reason,
    refused,
    side,
    unlisted,
)

from .devices import (
    MOST,
    Counts,
    Physical,
    Rank,
    anchor,
    counted,
    devices,
    health,
    more,
    physical,
    rank,
    shares,
    worst_first,
)
from .markup import Content, Row, escaped, joined, since, table, tag

NO_ID = "(no id)"
"""Shown for a device without an id."""
OTHERS = "(others)"
"""The subject of a problem that represents many, of several resources or packages."""

LOOKING = "Looking for devices"
"""Shown until every backend of a required entry has listed its devices."""

LINKS = ("/metrics", "/healthz", "/readyz", "/status.json")
"""The other paths of the listener."""

_PREFIXES = {
    "plugin": "refused: ",
    "backend": "degraded: ",
    "device": "unhealthy: ",
    "refused": "refused: ",
    "events": "no events: ",
    "observer": "paused: ",
}
"""Prefixes for announcements, by kind of problem; the reasons of other kinds need none."""


def content(document: StatusDocument, node: str, now: datetime, *, pods: bool = True) -> Markup:
    """The content between skip link and script. ``pods`` is whether the document names pods."""
    main = (
        _verdict(document),
        _search() if document.resources or document.dra else None,
        _problems(document, now),
        _resources(document, now),
        _entries(document),
        devices(document, now, pods),
        _dra(document.dra, now),
        _backends(document.backends, now),
        _observers(document, now),
        _verdicts(document, now),
        _held(document, pods),
        _refusals(document),
    )
    return joined(
        (
            _header(document, node, now),
            tag("main", *main, id="main", tabindex="-1"),
            _footer(document.devhost.version, now),
        )
    )


def verdict(document: StatusDocument) -> str:
    """One line: the number of problems, or whether devices are still looked for."""
    if count := how_many(document.problems):
        return _count(count, "problem")
    return LOOKING if awaits(document) else "No problems"


def how_many(problems: Iterable[ProblemStatus]) -> int:
    """The number of problems; one row may represent several."""
    return sum(problem.count for problem in problems)


def _header(document: StatusDocument, node: str, now: datetime) -> Markup:
    host, kubelet = document.devhost, document.kubelet
    absent = None if kubelet.socket == "present" else tag("strong", "ABSENT", class_="state bad")
    facts: list[tuple[str, Content]] = [
        ("devhost", host.version),
        ("Up", since(host.started_at, now)),
        ("Config", host.config),
        ("Generation", host.generation),
        ("Last reload", _reload(host, now)),
        ("Kubelet", joined([kubelet.dir, " " if absent else None, absent])),
    ]
    items = (tag("div", tag("dt", name), tag("dd", value)) for name, value in facts)
    text = f"generation {host.generation} of the configuration took effect"
    parts = tag("h1", node), tag("dl", *items, class_="facts")
    return tag("header", *parts, data_news="generation", data_announce=text)


def _reload(host: HostStatus, now: datetime) -> Markup:
    last = host.last_reload
    if last.result == "ok":
        return joined(["loaded ", since(last.at, now, " ago")])
    rejected = tag("strong", "REJECTED", class_="state bad")
    return joined([rejected, " ", since(last.at, now, " ago"), f", {in_use(host)}"])


def _verdict(document: StatusDocument) -> Markup:
    every: dict[tuple[str, str], Physical] = {}
    names = {resource.name for resource in document.resources}
    for resource in document.resources:
        for id_, one in physical(resource).items():
            key = resource.backend, id_
            every[key] = one.merged(every.get(key))
    for pool in document.dra.pools if document.dra else ():
        names.add(pool.resource)
        for device in pool.devices:
            key = pool.backend, device.device
            one = Physical(device.health == "Healthy", bool(device.claims))
            every[key] = one.merged(every.get(key))
    used = sum(one.used for one in every.values())
    healthy = f"{sum(one.healthy for one in every.values()):,} of {_count(len(every), 'device')} healthy"
    line = f"{_count(len(names), 'resource')}, {healthy}, {used:,} in use"
    text = verdict(document)
    style = "bad" if document.problems else "pending" if text == LOOKING else "good"
    parts = tag("h2", text, id="verdict"), tag("p", line)
    news = {"data-news": "verdict", "data-announce": text}
    return tag(
        "section", *parts, class_=f"verdict {style}", aria_labelledby="verdict", data_key="verdict", **news
    )


def _search() -> Markup:
    """The field that filters the rows of all tables. Only the script shows and fills it."""
    return tag(
        "div",
        tag("label", "Search", for_="search"),
        tag("input", id="search", type="search", autocomplete="off", spellcheck="false", maxlength=200),
        tag("output", id="found", for_="search"),
        class_="search",
        role="search",
        data_key="search",
        data_own=True,
    )


def _problems(document: StatusDocument, now: datetime) -> Markup | None:
    problems = document.problems
    resources = {resource.name for resource in document.resources}
    rows = [_problem(problem, resources, now) for problem in problems[:MOST]]
    headers = ("Subject", "Kind", "Reason", "Since")
    listed = table("Problems", headers, rows, wide=("Reason",), style="problems", headed=True)
    return _section("Problems", "problems", listed, more(how_many(problems[MOST:]), "problems"))


def _problem(problem: ProblemStatus, resources: Collection[str], now: datetime) -> Row:
    key = f"{problem.kind} {problem.subject}"
    name, _, device = problem.subject.partition(" ")
    subject: Content = f"{name} {device or NO_ID}" if problem.subject.endswith(" ") else problem.subject
    if name in resources:
        subject = joined([tag("a", name, href=f"#{anchor(name)}"), *([" ", device] if device else [])])
    text = f"{problem.subject or problem.kind}: {_PREFIXES.get(problem.kind, '')}{reason(problem)}"
    # several may have the same file, package, name or device
    if problem.kind in ("config", "plugin", "entry", "plan"):
        key = f"{key} {problem.reason}"
    return Row(
        (
            subject or OTHERS,
            tag("span", problem.kind, class_="kind"),
            reason(problem),
            since(problem.since, now),
        ),
        {
            "data-key": key,
            "data-news": f"problem {key}",
            "data-announce": text,
            "data-ended": _ended(problem),
        },
    )


def _ended(problem: ProblemStatus) -> str:
    end = "healthy again" if problem.kind == "device" else "no longer a problem"
    return f"{problem.subject or problem.kind}: {end}"


def _resources(document: StatusDocument, now: datetime) -> Markup | None:
    ordered = worst_first(document)
    if not ordered:
        return _section("Resources", "resources", tag("p", "No resources yet.", class_="nothing"))
    rows = [
        Row(
            (
                tag("a", resource.name, href=f"#{anchor(resource.name)}"),
                resource.backend,
                joined([tag("span", f"{found.healthy}/{found.devices}", class_="figure"), _bar(found)]),
                shares(resource, found),
                found.used,
                health(resource.state),
                resource.streams,
                since(resource.last_registration, now, " ago"),
                resource.last_error,
            ),
            {
                "data-key": resource.name,
                "data-news": f"resource {resource.name}",
                "data-announce": _announcement(resource, found),
                "class": place.style,
            },
        )
        for place, resource in ordered
        for found in (counted(resource),)
    ]
    headers = (
        "Resource",
        "Backend",
        "Healthy",
        "Shares",
        "In use",
        "State",
        "Streams",
        "Registered",
        "Error",
    )
    return _section(
        "Resources",
        "resources",
        table(
            "Resources",
            headers,
            rows,
            style="resources",
            wide=("Error",),
            optional=("Error", "Shares"),
            headed=True,
        ),
    )


def _entries(document: StatusDocument) -> Markup | None:
    """The entries that lack devices."""
    lacking = [
        entry
        for entry in document.entries
        if (not entry.devices or entry.reason or entry.remark) and entry.state != "moving"
    ]
    rows = [
        Row(
            (
                entry.name,
                entry.backend,
                entry.entry,
                tag("span", empty_entry(entry), class_=_looks(entry)),
                reason(entry) or entry.remark,
            ),
            {"data-key": entry.entry},
        )
        for entry in lacking[:MOST]
    ]
    headers = ("Entry", "Backend", "Place", "State", "Reason")
    title = "Entries that lack devices" if any(one.devices for one in lacking) else "Entries without devices"
    listed = table(title, headers, rows, wide=("Reason",), headed=True)
    return _section(title, "entries", listed, more(len(lacking) - len(rows), "entries"))


def _looks(entry: EntryStatus) -> str:
    if entry.state == "waiting":
        return "state pending"
    fine = not entry.reason if entry.devices else entry.optional
    return "state" if fine else "state bad"


def _announcement(resource: ResourceStatus, found: Counts) -> str:
    return f"{resource.name}: {resource.state}, {found.healthy} of {found.devices} healthy"


def _bar(found: Counts) -> Markup | None:
    """The healthy and unhealthy part of the devices as a bar; the numbers are next to it."""
    if not found.devices:
        return None
    share = round(100 * found.healthy / found.devices, 1)
    healthy = tag("rect", class_="healthy", width=share, height=6)
    unhealthy = (
        tag("rect", class_="unhealthy", x=share, width=round(100 - share, 1), height=6)
        if share < 100
        else None
    )
    return tag(
        "svg",
        healthy,
        unhealthy,
        viewBox="0 0 100 6",
        preserveAspectRatio="none",
        class_="bar",
        aria_hidden="true",
    )


def _backends(backends: Sequence[BackendStatus], now: datetime) -> Markup | None:
    rows = [
        Row(
            (
                backend.name,
                health(backend.state),
                since(backend.since, now),
                backend.devices,
                since(backend.last_discovery, now, " ago"),
                _took(backend.last_discovery_seconds),
                len(backend.refused_devices) or None,
                _provisioning(backend, now),
                _labels(backend),
                backend.reason,
            ),
            {"data-key": backend.name, "class": "unhealthy" if backend.state == "degraded" else None},
        )
        for backend in backends
    ]
    headers = (
        *("Backend", "State", "Since", "Devices", "Discovered", "Took", "Refused"),
        *("Provisioning", "Labels", "Reason"),
    )
    wide = ("Provisioning", "Labels", "Reason")
    refused = [(backend.name, one) for backend in backends for one in backend.refused_devices]
    unusable = [
        Row((one.device or NO_ID, name, one.reason), {"data-key": f"{name} {one.device}"})
        for name, one in refused[:MOST]
    ]
    caption = "Devices that a backend reported in an invalid form"
    return _section(
        "Backends",
        "backends",
        table(
            "Backends", headers, rows, wide=wide, optional=("Refused", *wide), style="backends", headed=True
        ),
        table(caption, ("Refused device", "Backend", "Reason"), unusable, wide=("Reason",)),
        more(len(refused) - len(unusable), "refused devices"),
    )


def _took(seconds: float | None) -> Markup | None:
    return None if seconds is None else tag("span", f"{seconds * 1000:.1f}ms", class_="figure")


def _provisioning(backend: BackendStatus, now: datetime) -> Markup | None:
    found = backend.provisioning
    if found is None:
        return None
    why = f": {reason(found)}" if found.reason else ""
    return joined([health(found.state), " ", since(found.since, now), why])


def _labels(backend: BackendStatus) -> Content:
    found = backend.labels
    if found is None:
        return None
    return f"{found.count} in {found.file}" + (f": {found.reason}" if found.reason else "")


def _observers(document: StatusDocument, now: datetime) -> Markup | None:
    rows = [
        Row(
            (
                observer.name,
                health(observer.state),
                since(observer.since, now),
                observer.calls,
                observer.failures,
                observer.waiting,
                observer.dropped,
                observer.reason,
            ),
            {"data-key": observer.name},
        )
        for observer in document.observers
    ]
    headers = ("Observer", "State", "Since", "Calls", "Failed", "Waiting", "Dropped", "Reason")
    listed = table("Observers", headers, rows, wide=("Reason",), headed=True)
    return _section("Observers", "observers", listed)


def _verdicts(document: StatusDocument, now: datetime) -> Markup | None:
    """The verdicts of people and other programs on devices."""
    found = document.verdicts
    rows = [
        Row(
            (
                judged(one),
                tag("span", one.kind, class_="kind"),
                one.by,
                since(one.since, now, " ago"),
                one.until,
                one.reason,
            ),
            {"data-key": one.file},
        )
        for one in found[:MOST]
    ]
    headers = ("Devices", "Kind", "By", "Since", "Ends", "Reason")
    listed = table(
        "Verdicts on devices", headers, rows, wide=("Devices", "Reason"), optional=("Ends",), headed=True
    )
    return _section("Verdicts", "verdicts", listed, more(len(found) - len(rows), "verdicts"))


def _dra(dra: DraStatus | None, now: datetime) -> Markup | None:
    """The DRA drivers, their devices, and those that change sides."""
    if dra is None:
        return None
    drivers = [
        Row(
            (
                one.driver,
                tag("span", one.state, class_="kind"),
                one.slices,
                one.writes,
                since(one.synced_at, now, " ago"),
                _trouble(one),
            ),
            {"data-key": one.driver},
        )
        for one in drivers_of(dra)
    ]
    headers = ("Driver", "State", "Slices", "Writes", "Synced", "Error")
    found = [
        (pool.resource, one, capacity(one) or counters(one, pool))
        for pool in dra.pools
        for one in pool.devices
    ]
    found.sort(key=lambda one: (_rank(one[1]), one[0], natural(one[1].device)))
    rows = [
        Row(
            (
                one.device,
                resource,
                health(one.health),
                one.slice or "not published",
                few([f"{claim.namespace}/{claim.claim}" for claim in one.claims]),
                used,
                one.reason,
            ),
            {
                "data-key": f"{resource} {one.device}",
                "class": _rank(one).style,
            },
        )
        for resource, one, used in found[:MOST]
    ]
    moving = [
        Row(
            (
                one.resource,
                len(one.devices),
                side(one.serve),
                since(one.since, now),
                few(one.devices),
                reason(one),
            ),
            {"data-key": f"{one.resource} {one.serve}", "class": "unhealthy" if one.stuck else None},
        )
        for one in dra.moves[:MOST]
    ]
    columns = ("Device", "Resource", "Health", "Slice", "Claims", "Amounts", "Reason")
    titles = ("Resource", "Moving", "Leaves", "Since", "Devices", "Reason")
    return _section(
        "Dynamic Resource Allocation",
        "dra",
        table("DRA driver", headers, drivers, wide=("Error",), optional=("Error",)),
        table(
            "Devices offered through DRA",
            columns,
            rows,
            wide=("Slice", "Reason"),
            optional=("Amounts", "Reason"),
        ),
        more(len(found) - len(rows), "devices"),
        table("Devices that change sides", titles, moving, wide=("Devices", "Reason")),
        more(len(dra.moves) - len(moving), "moves"),
    )


def _rank(one: DraDeviceStatus) -> Rank:
    return rank(one.health == "Healthy", bool(one.claims))


def _trouble(one: DraStatus | DriverStatus) -> str:
    dropped = f"the API server does not keep {', '.join(one.dropped_fields)}" if one.dropped_fields else ""
    return one.error or one.reason or dropped


def _held(document: StatusDocument, pods: bool) -> Markup | None:
    unnamed = UNKNOWN_POD if pods else HIDDEN_POD
    found = unlisted(document)
    rows = [
        Row(
            (
                numbered(held.id, others),
                held.resource,
                container(held.holder, unnamed),
                few(held.devices),
                reason(held),
            ),
            {"data-key": f"{held.resource} {held.id}"},
        )
        for held, others in found[:MOST]
    ]
    headers = ("Not listed", "Resource", "Held by", "Devices", "Reason")
    listed = table(
        "Devices that pods hold and no resource lists", headers, rows, wide=("Held by", "Devices", "Reason")
    )
    return _section("Held, not listed", "held", listed, more(len(found) - len(rows), "held devices"))


def _refusals(document: StatusDocument) -> Markup | None:
    found = refused(document)
    rows = [
        Row(
            (one.device or NO_ID, one.backend, tag("span", one.kind, class_="kind"), reason(one)),
            {"data-key": f"{one.backend} {one.device} {one.reason}"},
        )
        for one in found[:MOST]
    ]
    headers = ("Refused device", "Backend", "Kind", "Reason")
    listed = table("Devices that an entry selects but does not get", headers, rows, wide=("Reason",))
    return _section("Refusals", "refusals", listed, more(len(found) - len(rows), "refused devices"))


def _footer(version: str, now: datetime) -> Markup:
    links = (tag("li", tag("a", link, href=link[1:])) for link in LINKS)
    at = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    return tag(
        "footer",
        tag("nav", tag("ul", *links), aria_label="Other answers of this listener"),
        tag("p", f"devhost {version}, as of ", tag("span", f"{now:%Y-%m-%d %H:%M:%S} UTC", data_now=at)),
    )


def _section(title: str, name: str, *parts: Markup | None) -> Markup | None:
    """A section with a heading; ``None`` without content."""
    if not any(parts):
        return None
    return tag("section", tag("h2", title, id=name), *parts, aria_labelledby=name, data_key=name)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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
