"""The whole file: what comes out, in which order it is read, and that writing and reading agree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devhost.backend.errors import ConfigError, Diagnostic
from devhost.backend.where import Block, Flag, Range, Term, Text, covers
from devhost.config import backend_paths, load, loads
from devhost.discovery.catalog import Catalog
from devhost.planning.settings import (
    Inject,
    Of,
    Prefer,
    ReplicaOverride,
    ResourceSettings,
    Settings,
    Share,
    WhenEmpty,
)

Read = Callable[[str], Settings]
Complain = Callable[[str], tuple[Diagnostic, ...]]


def test_a_file_may_offer_nothing_yet(read: Read) -> None:
    assert read("version: 1\nresources: []") == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "f.yaml:1:1: the key version is required (for example version: 1)"),
        ("{}", "f.yaml:1:1: the key resources is required (for example resources: [])"),
        ("version: 2\nresources: []", "f.yaml:1:10: version: must be 1, not the number 2"),
        ("version: '1'\nresources: []", 'version: must be 1, not the text "1" (remove the quotes)'),
        ("version: true\nresources: []", "version: must be 1, not the value true"),
        (
            "version: 1\nresources:",
            "resources: must be a list, not an empty value (write [] for an empty list)",
        ),
        ("version: 1\nresources: {}", "resources: must be a list, not an empty mapping"),
        ("version: 1\nresorces: []", 'f.yaml:2:1: unknown key "resorces" (did you mean resources?)'),
        (
            "version: 1\nresources: []\nbackend: {}",
            'unknown key "backend" (did you mean backends? In an entry',
        ),
        (
            "version: 1\nresources: []\nwhere: {}",
            'f.yaml:3:1: unknown key "where"'
            " (it belongs to an entry under resources: indent it as far as its name)",
        ),
        (
            "version: 1\nresources:\n  name: a.com/x",
            'f.yaml:3:3: resources: must be a list, not a mapping (begin each member with "- ")',
        ),
        (
            "version: 1\nresources: [[{name: a.com/x}]]",
            'resources[0]: must be a mapping, not a list (remove the "- " before its keys)',
        ),
        (
            "version: 1\nresources: []\nlabels: true",
            "labels: must be a mapping, not the value true (write {write: true})",
        ),
        ("version: 1\nresources: []\nlabels: 3", "f.yaml:3:9: labels: must be a mapping, not the number 3"),
        ("version: 1\nresources: []\nbackends: []", "backends: must be a mapping, not an empty list"),
        (
            "version: 1\nresources: []\nbackends: {card: }",
            "backends.card: must be a mapping, not an empty value",
        ),
        ("version: 1\nresources: []\nbackendPaths: /x", "backendPaths: must be a list"),
        ("version: 1\nresources: []\nbackendPaths: [3]", "backendPaths[0]: must be text, not the number 3"),
        ("- 1", "f.yaml:1:1: must be a mapping, not a list (a configuration begins with `version: 1`)"),
        (
            "hello",
            'f.yaml:1:1: must be a mapping, not the text "hello" (a configuration begins with `version: 1`)',
        ),
        (
            "version: 1\nresources: [" + "{}," * 1001 + "]",
            "resources: must be from 0 to 1000 members, not 1001",
        ),
    ],
)
def test_a_wrong_file_is_refused(complaints: Complain, text: str, said: str) -> None:
    found = [str(complaint) for complaint in complaints(text)]
    assert any(said in line for line in found), found


def test_everything_wrong_comes_at_once_in_file_order(complaints: Complain) -> None:
    text = """
version: 3
resources:
- {name: bad, backend: card}
- {name: a.b/c, backend: card, where: {x: 1}}
backends: {card: {level: 3}, nope: {}}
what: 1
"""
    assert [complaint.line for complaint in complaints(text)] == [2, 4, 5, 6, 6, 7]


def test_backend_paths_are_relative_to_the_file_and_read_first(tmp_path: Path, catalog: Catalog) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text("version: 1\nresources: [{name: a.b/c, backend: card}]\nbackendPaths: [here, /there]\n")
    asked: list[Sequence[Path]] = []

    def catalog_for(paths: Sequence[Path], _wanted: Collection[str]) -> Catalog:
        asked.append(paths)
        return catalog

    found = load(file, catalog_for)
    assert asked == [(tmp_path / "here", Path("/there"))]
    assert found.backend_paths == (tmp_path / "here", Path("/there"))


def test_backend_paths_can_be_had_from_a_file_that_is_otherwise_wrong(tmp_path: Path) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text("version: 9\nbackendPaths: [here]\nresources: [x]\n")
    assert backend_paths(file) == (tmp_path / "here",)
    file.write_text("version: 1\nresources: []\n")
    assert backend_paths(file) == ()


def test_wrong_backend_paths_are_refused_alone(tmp_path: Path) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text("version: 9\nbackendPaths: {}\n")
    with pytest.raises(ConfigError) as caught:
        backend_paths(file)
    assert [complaint.path for complaint in caught.value.diagnostics] == ["backendPaths"]


def test_diagnostics_name_the_file_and_an_unused_broken_plugin_is_no_error(
    tmp_path: Path, catalog: Catalog
) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text("version: 1\nresources: []\n")
    assert catalog.refused
    assert load(file, lambda _paths, _wanted: catalog) == Settings()
    file.write_text("version: 1\n")
    with pytest.raises(ConfigError, match=f"^{file}:1:1: the key resources"):
        load(file, lambda _paths, _wanted: catalog)


def test_reading_twice_gives_equal_settings(read: Read) -> None:
    text = (
        "version: 1\nbackends: {card: {groups: [{paths: [/a]}]}}\nresources: [{name: a.b/c, backend: card}]"
    )
    assert read(text) == read(text)


words = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=12
)
digits = "0123456789abcdefABCDEF"
bound = st.integers(0, 99)
ranges = st.one_of(
    st.tuples(bound, bound).map(lambda pair: Range(min(pair), max(pair))),
    bound.map(lambda low: Range(low, None)),
    bound.map(lambda high: Range(None, high)),
)


PATTERNS: dict[str, st.SearchStrategy[Any]] = {
    "vendor": st.builds(Text, words.filter(lambda word: word[0] != "^")),
    "idVendor": st.builds(
        Text,
        st.text(digits, min_size=4, max_size=4) | st.text(digits, max_size=6).map("{}*".format),
        st.just(True),
    ),
    "numaNode": ranges,
    "virtual": st.builds(Flag, st.booleans()),
    "links": st.builds(Text, words),
    "ID_MODEL": st.builds(Text, words),
}


def _term(name: str) -> st.SearchStrategy[Term]:
    return st.builds(Term, st.just(name), st.lists(PATTERNS[name], min_size=1, max_size=3).map(tuple))


some_terms = st.sets(st.sampled_from(sorted(PATTERNS)), min_size=1, max_size=3).flatmap(
    lambda names: st.tuples(*map(_term, sorted(names)))
)
leaves = st.builds(Block, some_terms)
blocks = st.builds(Block, some_terms, st.lists(leaves, max_size=2).map(tuple))
wheres = st.lists(blocks, max_size=2).map(tuple)
replicas = st.integers(1, 100_000)
limits = st.none() | replicas
overrides = st.lists(
    st.builds(ReplicaOverride, st.lists(blocks, min_size=1, max_size=2).map(tuple), replicas), max_size=2
).filter(lambda found: not found[1:] or not covers(found[0].where, found[1].where))  # it would have no effect
shares = st.builds(Share, replicas, overrides.map(tuple), max_per_container=limits) | st.builds(
    Share, replicas, of=st.just(Of.ALL), max_per_container=limits
)


@st.composite
def resources(draw: st.DrawFn) -> tuple[ResourceSettings, ...]:
    entries = [
        ResourceSettings(
            index=index,
            name=f"a.b/r{index}",
            backend="card",
            where=draw(wheres),
            share=draw(shares),
            prefer=draw(st.sampled_from(Prefer)),
            inject=draw(st.sampled_from(Inject)),
            exclusive=False,
            when_empty=draw(st.sampled_from(WhenEmpty)),
            topology=draw(st.booleans()),
            healthy_while=draw(wheres),
            optional=draw(st.booleans()),
            take_over=draw(st.booleans()),
            check_starts=draw(st.booleans()),
            permissions=draw(st.sampled_from(("", "r", "rw", "mrw", "wm"))),
        )
        for index in range(draw(st.integers(0, 3)))
    ]
    return tuple(entries)


def _yaml_block(block: Block) -> dict[str, Any]:
    written: dict[str, Any] = {term.attribute: _yaml_patterns(term) for term in block.terms}
    if block.refuse:
        written["not"] = [_yaml_block(inner) for inner in block.refuse]
    return written


def _yaml_patterns(term: Term) -> list[Any]:
    return [p.value if isinstance(p, Flag) else str(p) for p in term.patterns]


def _yaml_where(where: tuple[Block, ...]) -> Any:
    return [_yaml_block(block) for block in where] if where else {}


def _yaml(settings: tuple[ResourceSettings, ...]) -> str:
    entries = [
        {
            "name": entry.name,
            "backend": entry.backend,
            "where": _yaml_where(entry.where),
            "share": {
                **({"maxPerContainer": n} if (n := entry.share.max_per_container) else {}),
                "replicas": entry.share.replicas,
                "of": entry.share.of.value,
                "overrides": [
                    {"where": _yaml_where(one.where), "replicas": one.replicas}
                    for one in entry.share.overrides
                ],
            },
            "prefer": entry.prefer.value,
            "inject": entry.inject.value,
            "exclusive": entry.exclusive,
            "whenEmpty": entry.when_empty.value,
            "topology": entry.topology,
            "optional": entry.optional,
            "takeOver": entry.take_over,
            "checkStarts": entry.check_starts,
            "healthyWhile": _yaml_where(entry.healthy_while),
            **({"permissions": entry.permissions} if entry.permissions else {}),
        }
        for entry in settings
    ]
    return yaml.safe_dump({"version": 1, "resources": entries}, allow_unicode=True)


@given(written=resources())
def test_settings_written_as_yaml_are_read_back_the_same(
    written: tuple[ResourceSettings, ...], catalog: Catalog
) -> None:
    found = loads(_yaml(written), "f.yaml", lambda _paths, _wanted: catalog)
    assert found.resources == written


def test_a_thousand_resources_are_read(read: Read) -> None:
    entries = "".join(f"- {{name: a.b/r{n}, backend: card, where: {{vendor: v{n}}}}}\n" for n in range(1000))
    assert len(read("version: 1\nresources:\n" + entries).resources) == 1000
