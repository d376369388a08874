"""The difference of two settings: what a reload touches, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import make_dataclass, replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from devhost.backend.where import Block, Term, Text
from devhost.config.difference import difference
from devhost.planning.settings import Of, Prefer, ResourceSettings, Settings, Share

Read = Callable[[str], Settings]


def entry(name: str, index: int = 0, prefer: Prefer = Prefer.TOPOLOGY) -> ResourceSettings:
    return ResourceSettings(index=index, name=name, backend="card", prefer=prefer)


def settings(*entries: ResourceSettings) -> Settings:
    return Settings(entries)


def test_equal_settings_do_not_differ(read: Read) -> None:
    text = (
        "version: 1\nbackends: {card: {groups: [{paths: [/a]}]}}\nresources: [{name: a.b/c, backend: card}]"
    )
    assert difference(read(text), read(text)) == ""


def test_empty_settings_do_not_differ() -> None:
    assert difference(Settings(), Settings()) == ""


def test_entries_are_added_removed_and_changed_by_their_name() -> None:
    old = settings(entry("a", 0), entry("b", 1), entry("c", 2))
    new = settings(entry("b", 0), entry("c", 1, Prefer.PACK), entry("d", 2))
    assert difference(old, new) == "added d; removed a; changed c (prefer); 1 unchanged"


def test_an_edit_of_what_a_container_may_have_is_shown_by_its_key() -> None:
    before = entry("a")
    condition = (Block((Term("status", (Text("ALIVE"),)),)),)
    after = replace(before, topology=False, healthy_while=condition, permissions="mrw", optional=True)
    found = difference(settings(before), settings(after))
    assert found == "changed a (topology, healthyWhile, permissions, optional); 0 unchanged"
    found = difference(settings(before), settings(replace(before, share=Share(max_per_container=1))))
    assert found == "changed a (share); 0 unchanged"


def test_sharing_together_instead_of_one_by_one_is_a_change() -> None:
    before = entry("a")
    found = difference(settings(before), settings(replace(before, share=Share(of=Of.ALL))))
    assert found == "changed a (share); 0 unchanged"


def test_an_entry_that_only_moved_is_unchanged_but_the_new_order_is_reported() -> None:
    found = difference(settings(entry("a", 0), entry("b", 1)), settings(entry("b", 0), entry("a", 1)))
    assert found == "order changed; 2 unchanged"


def test_two_entries_of_one_template_are_distinguished_by_their_order() -> None:
    old = settings(entry("a/{x}", 0), entry("a/{x}", 1, Prefer.PACK))
    assert not difference(old, old)
    assert difference(old, settings(entry("a/{x}", 0))) == "removed a/{x}; 1 unchanged"
    assert difference(old, settings(entry("a/{x}", 0, Prefer.PACK))) == (
        "removed a/{x}; changed a/{x} (prefer); 0 unchanged"
    )


def test_an_entry_that_changes_its_backend_is_another_one() -> None:
    new = ResourceSettings(index=0, name="a", backend="other")
    assert difference(settings(entry("a")), settings(new)) == "added a; removed a; 0 unchanged"


def test_changed_options_and_paths_are_reported(read: Read) -> None:
    text = "version: 1\nresources: []\nbackends: {card: {level: %s}}"
    assert difference(read(text % "low"), read(text % "high")) == "options changed of card; 0 unchanged"
    found = difference(Settings(), Settings(backend_paths=(Path("/x"),)))
    assert found == "backendPaths changed; 0 unchanged"


def test_an_item_more_in_a_list_of_options_is_a_change(read: Read) -> None:
    text = "version: 1\nresources: []\nbackends: {card: {groups: [{paths: [%s]}]}}"
    one, two = read(text % "/a"), read(text % "/a, /b")
    assert difference(one, two) == difference(two, one) == "options changed of card; 0 unchanged"


def test_a_backend_that_is_added_or_removed_is_reported(read: Read) -> None:
    with_card = read("version: 1\nresources: [{name: a.b/c, backend: card}]")
    came, went = difference(Settings(), with_card), difference(with_card, Settings())
    assert came == "added a.b/c; backend added: card; 0 unchanged"
    assert went == "removed a.b/c; backend removed: card; 0 unchanged"


def test_equal_options_of_a_drop_in_imported_again_are_unchanged() -> None:
    def options(value: int) -> object:
        inner = make_dataclass("Inner", ["x"], frozen=True)
        outer = make_dataclass("Options", ["inner", "table"], frozen=True)
        return outer((inner(value),), {"k": [inner(value)]})

    assert not difference(Settings(backends={"a": options(1)}), Settings(backends={"a": options(1)}))
    assert difference(Settings(backends={"a": options(1)}), Settings(backends={"a": options(2)}))


def test_a_long_list_is_cut_in_the_log_line() -> None:
    found = difference(Settings(), settings(*(entry(f"r{n}", n) for n in range(9))))
    assert found == "added r0, r1, r2, r3, r4 and 4 more; 0 unchanged"


some = st.lists(
    st.builds(entry, st.sampled_from("abcd"), st.just(0), st.sampled_from(Prefer)),
    unique_by=lambda e: e.name,
    max_size=4,
).map(lambda entries: settings(*entries))


@given(some, some)
def test_every_entry_is_in_exactly_one_part(old: Settings, new: Settings) -> None:
    found = difference(old, new)
    assert bool(found) == (old.resources != new.resources)
    assert "\n" not in found
    parts = dict.fromkeys(("added", "removed", "changed"), "")
    parts |= {word: names for word, _, names in (part.partition(" ") for part in found.split("; "))}
    count = {word: len(parts[word].split(", ")) if parts[word] else 0 for word in parts}
    unchanged = int(found.rpartition("; ")[2].split()[0]) if found else len(new.resources)
    assert count["added"] + count["changed"] + unchanged == len(new.resources)
    assert count["removed"] + count["changed"] + unchanged == len(old.resources)


def test_an_edit_of_one_of_two_entries_with_one_name_is_noticed() -> None:
    old = settings(entry("a", 0), entry("a", 1))
    new = settings(entry("a", 0, Prefer.PACK), entry("a", 1))
    assert difference(old, new) == "changed a (prefer); 1 unchanged"


def test_moving_an_entry_to_claims_is_a_change_of_two_keys_and_of_the_driver(read: Read) -> None:
    before = read("version: 1\nresources: [{name: a.b/c, backend: card, dra: {extendedName: true}}]")
    after = read(
        "{version: 1, dra: {driver: d.e}, resources: [{name: a.b/c, backend: card, serve: dra, "
        "dra: {extendedName: true, class: c.d}}]}"
    )

    assert difference(before, after) == "changed a.b/c (serve, dra); dra changed; 0 unchanged"
    assert not difference(after, after)
