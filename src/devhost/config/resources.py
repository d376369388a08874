"""The list under ``resources``: each entry by itself, then the entries beside each other.

An entry has keys of two kinds: those of the language, and those of its backend, which are the fields of its
``ResourceOptions``. That class is third-party code, so any exception from it becomes a diagnostic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

from devhost.backend import Backend, NoOptions, OptionError, templates
from devhost.backend.base import declared
from devhost.backend.errors import ConfigError
from devhost.backend.model import Cause, FrozenDict
from devhost.backend.where import Block, Covering, Flag, Term, Where, covers, may_hold
from devhost.discovery.catalog import Catalog
from devhost.planning import naming
from devhost.planning.give import NO_GIVE, Give
from devhost.planning.settings import (
    MAX_DRIVERS,
    DraTerms,
    Of,
    ReplicaOverride,
    ResourceSettings,
    Serve,
    Share,
    Skipped,
)

from .diagnostics import MEANT, KeyPath, Located, Mark, one_line, shown, suggest
from .document import Entry, Fields, Node, Scalar
from .language import Resource, ResourceDra, Sharing
from .published import read_published
from .reader import WRONG, agreed, camel, complain, keys, read_dataclass, read_fields, read_ranges, read_where

BACKEND = "backend"
"""The key that decides which other keys an entry has."""


def halves(node: Fields, catalog: Catalog, place: KeyPath) -> tuple[Fields, Fields]:
    """The part of an entry that belongs to the language, and the part of its backend, as two mappings.

    A key of neither is reported. If the backend is not installed, its keys are not known and any key may be
    its own. If no backend is named, every key but a misspelt one of the language may be.
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
        hint = Resource.former_keys.get(key, "") or suggest(key, {*language, *(known or ())}, "keys")
        if backend is not None and key in (_keys(backend.Options) or ()):
            hint = f"it is an option of the backend: backends.{backend.name}.{key}"
        if (known is not None and key not in known) or (known is None and hint.startswith(MEANT)):
            place.diagnostics.add(entry.mark, place.path, f"unknown key {shown(key)}", hint)
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
    except Exception:  # noqa: BLE001 - third-party annotations; reading the options reports it
        return None


def read_options(node: Node, backend: type[Backend], place: KeyPath) -> Any:
    """The value of a backend's ``Options``; WRONG after complaining.

    A key that belongs to the entries of the backend is refused with the place it goes to.
    """
    what = f"the options of backend {backend.name}"
    if isinstance(node, Fields):
        misplaced = set(_keys(backend.ResourceOptions) or ()) - set(_keys(backend.Options) or ())
        for key in misplaced & node.entries.keys():
            hint = f"put it into each entry under resources that needs it, beside backend: {backend.name}"
            message = f"{shown(key)} is a key of an entry, not of the backend"
            place.diagnostics.add(node.entries[key].mark, place.path, message, hint)
        node = Fields(node.mark, {key: one for key, one in node.entries.items() if key not in misplaced})
    options = read_third_party(node, backend.Options, what, place)
    guarded(lambda: bool(getattr(options, "provisions", True)), node, what, place)
    return options


def read_resource_options(
    theirs: Fields,
    backend: type[Backend],
    name: str,
    where: Where,
    share: Share,
    exclusive: bool,
    node: Fields,
    place: KeyPath,
) -> Any:
    """The value of a backend's ``ResourceOptions``; ``None`` where it has none, WRONG after complaining.

    ``theirs`` are the backend's keys of the entry ``node``, ``name`` is what the entry calls its resources.
    ``where`` may imply an option; the options may rule out how the entry shares its devices, ``share`` and
    ``exclusive``.
    """
    if backend.ResourceOptions is NoOptions:
        return None
    what = f"the resource options of backend {backend.name}"
    options = read_third_party(theirs, backend.ResourceOptions, what, place)
    if options is not WRONG:
        options = guarded(lambda: _implied(options, theirs, where), node, what, place)
    if options is not WRONG and (named := getattr(options, "named", None)):
        options = guarded(lambda: agreed(lambda: named(name), node, what, place), node, what, place)
    if options is WRONG:
        return WRONG
    guarded(lambda: bool(getattr(options, "prepares", True)), node, what, place)
    guarded(lambda: _check_uses(options), node, what, place)
    guarded(lambda: _check_only_for(options, where, node, place), node, what, place)
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


def _check_alone(reason: str, share: Share, exclusive: bool, node: Fields, place: KeyPath) -> None:
    if share.divides:
        complain(node, "share", place, reason, "remove share, or add a separate entry for what may be shared")
    if not exclusive:
        hint = "remove it: two resources that have one device may hand it out at the same time"
        complain(node, "exclusive", place, reason, hint)


def _why_alone(options: object) -> str | None:
    reason = getattr(options, "why_alone", None)
    if not isinstance(reason, str | None):
        raise TypeError(f"why_alone is {type(reason).__name__}, not text")
    return reason


def _check_uses(options: object) -> None:
    uses = getattr(options, "uses", ())
    if isinstance(uses, str) or not isinstance(uses, Collection):
        raise TypeError(f"uses is {type(uses).__name__}, not a collection of texts")
    if odd := [use for use in uses if not isinstance(use, str)]:
        raise TypeError(f"uses has {odd[0]!r} in it, which is not text")


def _check_only_for(options: object, where: Where, node: Fields, place: KeyPath) -> None:
    """Complains about keys that are for other devices than the entry can get."""
    for key, known in getattr(options, "only_for", {}).items():
        if not may_hold(where, known):
            kind = ", ".join(f"{name}: {value}" for name, value in known.items())
            message = f"is only for devices with {kind}, and where selects none"
            complain(node, key, place, message, "remove it, or change where")


def read_third_party(node: Node, cls: type, what: str, place: KeyPath) -> Any:
    """A third-party dataclass from a mapping; WRONG after reporting why, also if the class itself raised."""
    return guarded(lambda: read_dataclass(node, cls, place), node, what, place)


def guarded(call: Callable[[], Any], at: Located, what: str, place: KeyPath) -> Any:
    """The result of a call of third-party code; WRONG after reporting why there is none."""
    try:
        return call()
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - third-party code may raise anything
        text = one_line(f"{type(error).__name__}: {error}", 200)
        place.report(at, f"{what} failed: {text}", "report it to its author")
        return WRONG


class Placed(NamedTuple):
    """An entry and its position in the file."""

    mark: Mark
    place: KeyPath
    settings: ResourceSettings


def read_resources(
    nodes: Sequence[Node], catalog: Catalog, place: KeyPath, has_dra: bool, driver: str
) -> tuple[tuple[Placed, ...], tuple[Skipped, ...]]:
    """The sound entries and the skipped ones; what is wrong with others, or between them, is reported.

    An ``optional`` entry whose backend is one of this project's and not installed is skipped: one file serves
    nodes with different packages. Only what does not depend on the backend is checked of it. ``has_dra`` is
    whether the file names a DRA driver, ``driver``, without which no entry can have ``serve: dra``.
    """
    entries = []
    skipped = []
    seen: dict[str, Mark] = {}
    for index, node in enumerate(nodes):
        here = place.item(index)
        before = len(place.diagnostics.found)
        mine, theirs = halves(node, catalog, here) if isinstance(node, Fields) else (node, None)
        values = read_fields(mine, Resource, here)
        _refuse_second(node, values.get("name"), seen, here)
        _check_serve(node, values, has_dra, here)
        hint = catalog.to_install(values.get("backend", "")) if values.get("optional") else ""
        if hint and isinstance(node, Fields) and "name" in values:
            _check_name(values["name"], node, here)
            skipped.append(Skipped(index, values["name"], values["backend"], hint))
            continue
        settings = None if theirs is None else _entry(node, index, values, theirs, catalog, driver, here)
        if settings is not None and len(place.diagnostics.found) == before:
            entries.append(Placed(node.mark, here, settings))
    _refuse_hidden(entries, catalog)
    _refuse_shared_class(entries)
    _refuse_many_drivers(entries)
    return tuple(entries), tuple(skipped)


def named_backends(nodes: Sequence[Node]) -> set[str]:
    """The values of ``backend`` in all entries, including those that name no known backend."""
    entries = [node.entries.get("backend") for node in nodes if isinstance(node, Fields)]
    return {entry.value.text for entry in entries if entry and isinstance(entry.value, Scalar)}


def backend_of(name: str, at: Node, catalog: Catalog, place: KeyPath) -> type[Backend] | None:
    """The backend called ``name``; ``None`` after reporting why there is none."""
    backend = catalog.get(name)
    if backend is None:
        meant = suggest(name, catalog.installed, "backends")
        suspect = "" if meant.startswith(MEANT) else catalog.suspect()
        hint = one_line(catalog.why_missing(name) or suspect) or meant
        place.report(at, f"backend {shown(name)} is not installed", hint)
    return backend


def _entry(
    node: Node,
    index: int,
    values: dict[str, Any],
    theirs: Fields,
    catalog: Catalog,
    driver: str,
    place: KeyPath,
) -> ResourceSettings | None:
    """One entry; ``None`` after reporting what is wrong with it.

    ``values`` are what the keys of the language hold, ``theirs`` the keys of the backend. ``driver`` is the
    DRA driver of entries that name none.
    """
    if not isinstance(node, Fields):
        return None
    name, kind = values.pop("name", None), values.pop("backend", None)
    sound = name is not None and _check_name(name, node, place)
    if kind is None:
        return None
    backend = backend_of(kind, node.entries["backend"].value, catalog, place.key("backend"))
    if backend is None:
        return None
    if name is not None and sound:
        _check_fields(name, backend, node, place)
    if values.get("name_map") and not naming.fields(name or ""):
        complain(node, "nameMap", place, "has no effect: the name has no attribute in braces", "remove it")
    sharing = values.pop("share", Sharing())
    where = _conditions(values.pop("where", None), backend, place.key("where"))
    healthy_while = _conditions(values.pop("healthy_while", None), backend, place.key("healthyWhile"))
    share = Share(
        sharing.replicas,
        _overrides(sharing, backend, place),
        _of(sharing.of, backend, node, place),
        sharing.max_per_container,
        sharing.members,
    )
    if sharing.capacity:
        from .amounts import read_amounts, read_limit  # only where they are used

        share = replace(share, amounts=read_amounts(sharing, backend, node, place))
    exclusive = values.get("exclusive", True)
    if values.pop("expect", None) is not None:
        expected = node.entries["expect"].value
        assert isinstance(expected, Scalar)  # it has been read as a number or text
        values["expect"] = read_ranges(expected, place.key("expect"), is_condition=False)
    options = read_resource_options(theirs, backend, name or "", where, share, exclusive, node, place)
    give = values.get("give", NO_GIVE)
    if give is not NO_GIVE:
        _check_give(give, name or "", backend, options, node, place)
    if share.amounts:
        share = replace(share, limit=read_limit(sharing, share.amounts, options, backend, give, node, place))
    terms = values.pop("dra", ResourceDra())
    _check_claim_options(terms.claim_options, share.limit.by, backend, node, place)
    publishes, own = terms.profile or terms.attributes or terms.capacity, terms.driver or driver
    attributes, capacity = (
        read_published(terms, backend, node.entries["dra"].value, own, place.key("dra"), len(share.amounts))
        if publishes
        else ((), ())
    )
    return ResourceSettings(
        index=index,
        name=name or "",
        backend=kind,
        where=where,
        share=share,
        healthy_while=healthy_while,
        options=options,
        dra=DraTerms(
            terms.class_ or "",
            terms.extended_name,
            tuple(terms.claim_options),
            attributes,
            capacity,
            profile=terms.profile,
            lists=terms.lists,
            taints=FrozenDict(
                (cause, effect) for cause in Cause if (effect := getattr(terms.taints, cause.value))
            ),
            driver=terms.driver or "",
            counters=terms.counters,
        ),
        driver=(terms.driver or driver) if values.get("serve") is Serve.DRA else "",
        **values,
    )


def _check_give(
    give: Give, name: str, backend: type[Backend], options: object, node: Fields, place: KeyPath
) -> None:
    """Complains about each placeholder that is no attribute, and each variable that the backend sets.

    Also about two variables that certainly have one name: with a template, that of the resource is not known.
    """
    variables = (*backend.variables, *getattr(options, "variables", ()))

    def check(key: str, text: str, others: Collection[str]) -> None:
        templates.check(text, key, backend.attributes, others)
        if key == f"env.{text}" and any(fnmatchcase(text, one) for one in variables):
            raise OptionError(f"backend {backend.name} sets this variable", key=key, hint="remove it")

    def distinct() -> None:
        made: dict[str, str] = {}
        for variable in () if naming.fields(name) else give.env:
            filled = naming.variable(variable, name)
            if (other := made.setdefault(filled, variable)) != variable:
                message = f"{other} and {variable} are both {filled}"
                raise OptionError(message, key=f"env.{variable}", hint="rename one")

    checks: list[Callable[[], None]] = [distinct, *(partial(check, *one) for one in give.texts())]
    for one in checks:
        agreed(one, node.entries["give"].value, backend.name, place.key("give"))


def refuse_by_options(entry: Placed, options: Mapping[str, Any], catalog: Catalog) -> None:
    """Complains about what the options of its backend rule out in an entry. They are third-party code."""
    name = entry.settings.backend
    backend, what = catalog.get(name), f"the options of backend {name}"
    if backend is None:
        return
    for refuse in (_refuse_set_variables, _refuse_undefined, _refuse_uncounted):
        guarded(partial(refuse, entry, options.get(name), backend), entry, what, entry.place)


def _refuse_set_variables(entry: Placed, options: Any, backend: type[Backend]) -> None:
    """Complains about variables of ``give`` that the options set for what the entry names."""
    give, where = entry.settings.give, entry.settings.where
    if not give.env:
        return
    terms = [term for block in where for term in block.terms]
    patterns = [one for term in terms if _reveals(backend, term) for one in term.patterns]
    known = getattr(options, "variables", {})
    for group, variables in known.items() if isinstance(known, Mapping) else ():
        if not any(pattern.matches(group) for pattern in patterns):
            continue
        for variable in give.env:
            if any(fnmatchcase(variable, one) for one in variables):
                message = f"backends.{backend.name} sets this variable for {shown(group)}"
                place = entry.place.key("give").key("env").key(variable)
                place.report(entry, message, "remove one of the two")


def _refuse_undefined(entry: Placed, options: Any, backend: type[Backend]) -> None:
    """Complains about conditions on an attribute that no value meets which the options define."""
    blocks, where = entry.settings.where, entry.place.key("where")
    known = getattr(options, "words", {})
    for n, term in ((n, term) for n, block in enumerate(blocks) for term in block.terms):
        if not isinstance(known, Mapping) or term.attribute not in known:
            continue
        words = known[term.attribute]
        for one in term.patterns:
            if not any(map(one.matches, words)):
                place = (where.item(n) if blocks[1:] else where).key(term.attribute)
                hint = suggest(str(one), words, "values") if words else "define it there"
                message = f"backends.{backend.name} does not define {shown(str(one))}"
                place.report(entry, message, hint)


def _refuse_uncounted(entry: Placed, options: Any, backend: type[Backend]) -> None:
    """Complains about an entry that may select devices which only ``dra.counters`` can offer."""
    made, settings = getattr(options, "counted", {}), entry.settings
    if not made or not isinstance(made, Mapping) or settings.counts or not may_hold(settings.where, made):
        return
    kind = ", ".join(f"{name}: {value}" for name, value in made.items())
    message = f"selects devices ({kind}) that backends.{backend.name} makes for claims only"
    hint = "add serve: dra and dra: {counters: true}, or exclude them in where"
    entry.place.report(entry, message, hint)


def _reveals(backend: type[Backend], term: Term) -> bool:
    attribute = declared(backend.attributes, term.attribute)
    return attribute is not None and attribute.reveals


def _check_serve(node: Node, values: Mapping[str, Any], has_dra: bool, place: KeyPath) -> None:
    """Complains about what cannot be together with ``serve: dra``, and about one class for several names."""
    if not isinstance(node, Fields):
        return
    name, terms = values.get("name", ""), values.get("dra", ResourceDra())
    sharing = values.get("share", Sharing())
    if terms.class_ and naming.fields(name):
        hint = "remove it: each name gets its own class, for example serial-a.example.com"
        complain(node, "dra.class", place, "one class cannot be for all names that a template makes", hint)
    if values.get("serve") is not Serve.DRA:
        if sharing.capacity:
            hint = "add serve: dra, or share by replicas"
            complain(node, "share.capacity", place, "the device plugin API has no amounts", hint)
        return
    if not has_dra:
        hint = "add dra: {driver: devhost.example.com} at the top level"
        complain(node, "serve", place, "the file names no DRA driver", hint)
    if values.get("give", NO_GIVE).annotations:
        hint = "remove them, or set serve: plugin"
        complain(node, "give.annotations", place, "claims give no annotations", hint)
    if sharing.of == Of.ALL:
        hint = "remove it, as a claim with allocationMode: All gets every device; or set serve: plugin"
        complain(node, "share.of", place, "claims cannot get all devices together from one entry", hint)
    if sharing.max_per_container is not None:
        hint = "remove it, as Kubernetes has no such limit for claims; or set serve: plugin"
        complain(node, "share.maxPerContainer", place, "has no effect with serve: dra", hint)
    if terms.counters:
        _check_counters(node, name, sharing, values.get("exclusive", True), place)


def _check_counters(node: Fields, name: str, sharing: Sharing, exclusive: bool, place: KeyPath) -> None:
    """Complains about what cannot be together with ``dra.counters``: a scheduler counts in one pool only."""
    if naming.fields(name):
        message = "devices that exclude each other need one name"
        complain(node, "dra.counters", place, message, "write a name without {…}")
    for key, is_there in (
        ("exclusive: false", not exclusive),
        ("share.replicas", sharing.replicas > 1 or sharing.overrides),
        ("share.of", sharing.of != Of.EACH),
        ("share.capacity", sharing.capacity),
    ):
        if is_there:
            message = f"cannot be together with {key}"
            complain(node, "dra.counters", place, message, "remove one of the two")


def _check_claim_options(
    wanted: Sequence[str], limiter: str, backend: type[Backend], node: Fields, place: KeyPath
) -> None:
    """Complains about each key of ``claimOptions`` that entries of the backend lack, and the ``limiter``."""
    known = _keys(backend.ResourceOptions)
    if not wanted or known is None:
        return
    for n, key in enumerate(wanted):
        at = f"dra.claimOptions[{n}]"
        if key not in known:
            message = f"backend {backend.name} adds no key {shown(key)} to entries"
            complain(node, at, place, message, suggest(key, known, "keys"))
        elif key == limiter:
            complain(node, at, place, f"{key} limits containers, so claims must not set it", "remove it")


def _refuse_shared_class(entries: Sequence[Placed]) -> None:
    """Complains about a class of several entries that has the name of one of them as its extended name.

    Pods that request the name could get devices of the other entry. So could claims if the same class is made
    of the names of two resources: ``b/a.c`` and ``c.b/a``. An entry may name the class of another one.
    """
    first: dict[str, Placed] = {}
    for entry in entries:
        settings = entry.settings
        if settings.serve is not Serve.DRA or naming.fields(settings.name):
            continue
        name = settings.dra.device_class or naming.device_class(settings.name)
        earlier = first.setdefault(name, entry)
        if earlier is entry:
            continue
        line, other = earlier.mark.line, earlier.settings
        if settings.dra.extended_name or other.dra.extended_name:
            message = (
                f"the class {shown(name)} is also that of the entry in line {line}, "
                "and a class with extendedName has one entry"
            )
            hint = "give each entry its own class, or remove extendedName"
            entry.place.key("dra").report(entry, message, hint)
        elif not (settings.name == other.name or settings.dra.device_class or other.dra.device_class):
            message = f"its class would be {shown(name)}, as that of {shown(other.name)} in line {line}"
            entry.place.key("name").report(entry, message, "set dra.class of this entry to another name")


def _refuse_many_drivers(entries: Sequence[Placed]) -> None:
    """Complains about the first entry whose DRA driver is one too many."""
    drivers: set[str] = set()
    for entry in entries:
        drivers.add(entry.settings.driver)
        if len(drivers - {""}) > MAX_DRIVERS:
            message = f"a file has at most {MAX_DRIVERS} DRA drivers, and this is one more"
            entry.place.key("dra").key("driver").report(entry, message, "use a driver of another entry")
            return


def _conditions(node: Node | None, backend: type[Backend], place: KeyPath) -> Where:
    """Conditions on attributes; none where the key is absent."""
    return () if node is None else read_where(node, backend.name, backend.attributes, place)


def _overrides(sharing: Sharing, backend: type[Backend], place: KeyPath) -> tuple[ReplicaOverride, ...]:
    """The overrides; complains about each that has no effect because of those above it."""
    above: Covering[ReplicaOverride] = Covering()
    found: list[ReplicaOverride] = []
    for n, override in enumerate(sharing.overrides):
        here = place.key("share").key("overrides").item(n).key("where")
        before = len(place.diagnostics.found)
        where = read_where(override.where, backend.name, backend.attributes, here)
        found.append(made := ReplicaOverride(where, override.replicas))
        if len(place.diagnostics.found) > before:
            continue
        blocks = where or (Block(),)
        if all(any(above.owners(block)) for block in blocks):
            message = "has no effect: overrides above it select all of these devices first"
            here.report(override.where, message, "put the narrower override first, or remove one of them")
        for block in blocks:
            above.add(block, made)
    return tuple(found)


def _of(of: str, backend: type[Backend], node: Fields, place: KeyPath) -> Of | str:
    """What one token gives: each or all devices, or those with one value of an attribute of the backend."""
    if of in tuple(Of):
        return Of(of)
    attribute = declared(backend.attributes, of)
    if attribute is None:
        message = (
            f"must be one of {', '.join(Of)}, or an attribute of backend {backend.name}, not {shown(of)}"
        )
        hint = suggest(of, {**dict.fromkeys(Of), **backend.attributes}, "values")
        complain(node, "share.of", place, message, hint)
    elif attribute.type is list:
        message = f"{shown(of)} is a list, and the id of a unit is one value"
        complain(node, "share.of", place, message, "name another attribute")
    return of


_VARIABLE = re.compile(r"\$\{[^{}]*\}|\$\([^()]*\)|\$\w+|\{\{.*?\}\}")
"""A variable of a shell, of Kubernetes or of a Helm template."""


def _check_name(name: str, node: Node, place: KeyPath) -> bool:
    """Whether the name is legal for any values of the attributes in a template."""
    if variable := _VARIABLE.search(name):
        message = f"{shown(name)} has {shown(variable[0])} in it, and variables are not expanded"
        hint = "write the name itself; {ATTRIBUTE} is replaced by an attribute of the device"
        complain(node, "name", place, message, hint)
        return False
    problem = naming.template_problem(name)
    if problem:
        complain(node, "name", place, f"{shown(name)} {problem}", "for example example.com/serial")
    return not problem


def _check_fields(name: str, backend: type[Backend], node: Node, place: KeyPath) -> None:
    for field in naming.fields(name):
        if declared(backend.attributes, field) is None:
            message = f"backend {backend.name} has no attribute {shown(field)} to name resources after"
            complain(node, "name", place, message, suggest(field, backend.attributes, "attributes"))


def _refuse_second(node: Node, name: str | None, seen: dict[str, Mark], place: KeyPath) -> None:
    """A plain name must be unique; a template may appear twice, because it makes different names."""
    if not name or naming.fields(name) or not isinstance(node, Fields):
        return
    if name in seen:
        message = f"{shown(name)} is already offered by the entry in line {seen[name].line}"
        complain(node, "name", place, message, "make one entry of both: where may be a list of blocks")
    else:
        seen[name] = node.mark


def _refuse_hidden(entries: Sequence[Placed], catalog: Catalog) -> None:
    """Complains about each entry none of whose devices can get past the entries above it."""
    by_backend: dict[str, Covering[Placed]] = {}
    for later in entries:
        above = by_backend.setdefault(later.settings.backend, Covering())
        backend = catalog.get(later.settings.backend)
        revealing = {name for name, one in (backend.attributes if backend else {}).items() if one.reveals}
        blocks = later.settings.where or (Block(),)
        takers = [_taker(above, later.settings, block, revealing) for block in blocks]
        lines = sorted({taker.mark.line for taker in takers if taker})
        if None not in takers:
            who = "the entry in line {} takes" if len(lines) == 1 else "the entries in lines {} take"
            whom = who.format(", ".join(map(str, lines)))
            message = f"this can never get a device: {whom} them all first"
            hint = "put the narrower entry first, or set exclusive: false in both"
            if any(taker.settings.serve is not later.settings.serve for taker in takers if taker):
                hint = "put the narrower entry first: a device is never on both sides"
            elif any(taker.settings.driver != later.settings.driver for taker in takers if taker):
                hint = "put the narrower entry first: only one driver publishes a device"
            later.place.report(later, message, hint)
        for block in blocks:
            above.add(block, later)


def _taker(
    above: Covering[Placed], later: ResourceSettings, block: Block, revealing: Collection[str]
) -> Placed | None:
    """The first entry that surely takes every device that comes to ``later`` by ``block``.

    ``revealing`` are attributes of the backend that show what a device inherited to the block which names
    them.
    """
    named = {*naming.fields(later.name), *(term.attribute for term in block.terms)}
    inherits = any(term.attribute in revealing for term in block.terms)
    for earlier in above.owners(block, by_purpose=True):
        if inherits and not earlier.settings.where and naming.fields(earlier.settings.name):
            continue  # it takes every device, but makes no name of what a device inherited
        if earlier.settings.share.attribute:
            continue  # it takes no unit of which another entry has a member
        if not (earlier.settings.exclusive or later.exclusive or earlier.settings.side != later.side):
            continue
        # a device without one of the fields gets no name from a template, and stays free
        if named.issuperset(naming.fields(earlier.settings.name)):
            return earlier
    return None
