"""An entry under ``resources`` has keys of two kinds: those of the language, and those of its backend.

A backend's are the fields of its ``ResourceOptions``. That class is a stranger's, so whatever it raises
becomes a complaint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any

from devhost.backend import Backend, NoOptions
from devhost.backend.errors import ConfigError
from devhost.backend.where import Block, Flag, Term, Where, covers
from devhost.discovery.catalog import Catalog
from devhost.planning.settings import Share

from .annotation import camel, keys
from .diagnostics import Located, Place, one_line, shown, suggest
from .language import Resource
from .nodes import Entry, Fields, Node, Scalar
from .reader import agreed, read_dataclass
from .scalar import WRONG

BACKEND = "backend"
"""The key that says whose the other keys are."""


def halves(node: Fields, catalog: Catalog, place: Place) -> tuple[Fields, Fields]:
    """The language's part of an entry and its backend's, each as a mapping of its own.

    A key of neither is complained about. Where nobody knows which keys the backend has, as it is not
    installed, any may be its own; and where no backend is named, all but the misspelt ones of the language.
    """
    language = keys(Resource)
    backend = _named(node, catalog)
    known = None if backend is None else _keys(backend.ResourceOptions)
    mine: dict[str, Entry] = {}
    theirs: dict[str, Entry] = {}
    for key, entry in node.entries.items():
        if key in language:
            mine[key] = entry
            continue
        theirs[key] = entry
        if known is None and BACKEND in node.entries:
            continue
        hint = suggest(key, {*language, *(known or ())}, "keys")
        if backend is not None and key in (_keys(backend.Options) or ()):
            hint = f"it is an option of the backend: backends.{backend.name}.{key}"
        if (known is not None and key not in known) or (known is None and hint.startswith("did")):
            place.complaints.add(entry.mark, place.path, f"unknown key {shown(key)}", hint)
            del theirs[key]
    return Fields(node.mark, mine), Fields(node.mark, theirs)


def _named(node: Fields, catalog: Catalog) -> type[Backend] | None:
    """The backend that an entry names; ``None`` where it names none that is installed."""
    named = node.entries.get(BACKEND)
    return catalog.get(named.value.text) if named and isinstance(named.value, Scalar) else None


def _keys(cls: type) -> Collection[str] | None:
    """The keys of a backend's dataclass; ``None`` where they are not known."""
    try:
        return keys(cls)
    except Exception:  # noqa: BLE001 - a stranger's annotations; reading the options tells of it
        return None


def read_options(node: Node, backend: type[Backend], place: Place) -> Any:
    """The value of a backend's ``Options``; WRONG after complaining.

    A key that belongs to the entries of the backend is refused with the place it goes to.
    """
    what = f"the options of backend {backend.name}"
    if isinstance(node, Fields):
        misplaced = set(_keys(backend.ResourceOptions) or ()) - set(_keys(backend.Options) or ())
        for key in misplaced & node.entries.keys():
            hint = f"put it into each entry under resources that needs it, beside backend: {backend.name}"
            message = f"{shown(key)} is a key of an entry, not of the backend"
            place.complaints.add(node.entries[key].mark, place.path, message, hint)
        node = Fields(node.mark, {key: one for key, one in node.entries.items() if key not in misplaced})
    return read_strangers(node, backend.Options, what, place)


def read_resource_options(
    theirs: Fields,
    backend: type[Backend],
    name: str,
    where: Where,
    share: Share,
    exclusive: bool,
    node: Fields,
    place: Place,
) -> Any:
    """The value of a backend's ``ResourceOptions``; ``None`` where it has none, WRONG after complaining.

    Args:
        theirs: the backend's keys of the entry ``node``.
        name: what the entry calls its resources.
        where: which devices the entry selects, which may imply an option.
        share, exclusive: what the entry says of sharing, which the options may have something against.
    """
    if backend.ResourceOptions is NoOptions:
        return None
    what = f"the resource options of backend {backend.name}"
    options = read_strangers(theirs, backend.ResourceOptions, what, place)
    if options is not WRONG:
        options = guarded(lambda: _implied(options, theirs, where), node, what, place)
    if options is not WRONG and (named := getattr(options, "named", None)):
        options = guarded(lambda: agreed(lambda: named(name), node, what, place), node, what, place)
    if options is WRONG:
        return WRONG
    guarded(lambda: bool(getattr(options, "prepares", True)), node, what, place)
    guarded(lambda: _check_uses(options), node, what, place)
    reason = guarded(lambda: _why_alone(options), node, what, place)
    if reason is not WRONG and reason:
        _check_alone(one_line(reason, 300), share, exclusive, node, place)
    return options


def _implied(options: Any, theirs: Fields, where: Where) -> Any:
    """The options with those that ``where`` implies, as far as the file does not give them."""
    implied = {
        field.name: True
        for field in fields(options)
        if (attribute := field.metadata.get("implied_by"))
        and camel(field.name) not in theirs.entries
        and where
        and covers((Block((Term(attribute, (Flag(True),)),)),), where)
    }
    return replace(options, **implied) if implied else options


def _check_alone(reason: str, share: Share, exclusive: bool, node: Fields, place: Place) -> None:
    if max(share.replicas, *(override.replicas for override in share.overrides), 1) > 1:
        hint = "remove share, or give what may be shared an entry of its own"
        place.key("share").complain(node.entries["share"].value, reason, hint)
    if not exclusive:
        hint = "remove it: two resources that have one device may hand it out at the same time"
        place.key("exclusive").complain(node.entries["exclusive"].value, reason, hint)


def _why_alone(options: object) -> str:
    reason = getattr(options, "why_alone", "")
    if not isinstance(reason, str):
        raise TypeError(f"why_alone is {type(reason).__name__}, not text")
    return reason


def _check_uses(options: object) -> None:
    uses = getattr(options, "uses", ())
    if isinstance(uses, str) or not isinstance(uses, Collection):
        raise TypeError(f"uses is {type(uses).__name__}, not a collection of texts")
    if odd := [use for use in uses if not isinstance(use, str)]:
        raise TypeError(f"uses has {odd[0]!r} in it, which is not text")


def read_strangers(node: Node, cls: type, what: str, place: Place) -> Any:
    """A dataclass of a stranger's from a mapping; WRONG after complaining, also of what it raised itself.

    Args:
        what: whose it is, for a complaint.
    """
    return guarded(lambda: read_dataclass(node, cls, place), node, what, place)


def guarded(call: Callable[[], Any], at: Located, what: str, place: Place) -> Any:
    """What a call gives into which a stranger's code has a say; WRONG after complaining."""
    try:
        return call()
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything
        text = one_line(f"{type(error).__name__}: {error}", 200)
        place.complain(at, f"{what} failed: {text}", "report it to its author")
        return WRONG
