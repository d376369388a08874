"""Bytes that are no configuration: each kind gets one clear line with its place, and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devhost.backend.errors import ConfigError, Diagnostic
from devhost.config import load, loads
from devhost.config.diagnostics import MAX_DIAGNOSTICS, Diagnostics
from devhost.config.document import MAX_BYTES, parse, parse_all
from devhost.discovery.catalog import Catalog
from devhost.planning.settings import Settings

GOOD = "version: 1\nresources: []\n"


def refused(text: str | bytes) -> tuple[Diagnostic, ...]:
    with pytest.raises(ConfigError) as caught:
        loads(text, "f.yaml", lambda _paths, _wanted: Catalog())
    return caught.value.diagnostics


def only(text: str | bytes) -> str:
    (complaint,) = refused(text)
    return str(complaint)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "f.yaml: it is empty (it needs"),
        (b" \n\n", "f.yaml: it is empty"),
        (b"# nothing\n", "f.yaml: it has only comments"),
        (b"version: 1\n\0\n", "f.yaml:2:1: this is not text: it has a zero byte"),
        (b"\x7fELF\x02\x01\x00", "f.yaml:1:7: this is not text"),
        (b"a: 1\nb: \xff\n", "f.yaml:2:4: this is not UTF-8 text"),
        ("a: 1".encode("utf-16"), "f.yaml:1:4: this is not text"),
        (b"a: \x07", 'YAML does not allow the character "\\x07"'),
        (b"a: [1, 2\nb: 3", "check the indentation, brackets and quotes"),
        (b"a:\n\t- 1", "indent with spaces: YAML does not allow tabs"),
        (b"a: @x", "put the value in quotes"),
        (
            b"a: [1, 2\n\nb: 3",
            "f.yaml:3:2: did not find expected ',' or ']'"
            " (check the indentation, brackets and quotes from line 1 to here)",
        ),
        (b'a: "b\nc: d\n', "f.yaml:1:4: the quote that begins here has no end"),
        (
            b"a: - b",
            "f.yaml:1:4: block sequence entries are not allowed in this context"
            " (begin the list in a new line)",
        ),
        (b"a:1\nb: 2", "(put a space after the : in line 1)"),
        (b"a:\n-b: c\n  d: e", "(put a space after the - in line 2)"),
        (b"a:\n-\xc2\xa0b: c\n  d: e", "(line 2 has U+00A0 in place of a space: type the space again)"),
        (
            b"config: |\n  version: 1\n",
            "f.yaml:1:1: this is a file of values for the chart, not a configuration of devhost"
            ' (keep only the text of its key "config", without the indentation)',
        ),
        (b"a: b: c", "f.yaml:1:5: mapping values are not allowed"),
        (b"a: *nowhere", "f.yaml:1:4: the alias *nowhere has no anchor"),
        (b"a: &x [*x]", "f.yaml:1:8: the alias *x contains itself"),
        (b"a: &x {b: *x}", "f.yaml:1:11: the alias *x contains itself"),
        (b"version: 1\n---\nversion: 1", "f.yaml:2:1: a second document starts here"),
        (b"a: " + b"[" * 80 + b"]" * 80, "it nests deeper than 64 levels"),
        (b"[" * 500_000, "it nests deeper than 64 levels"),
        (b"{a: " * 1000, "it nests deeper than 64 levels"),
        (b"#" * (MAX_BYTES + 1), "f.yaml: it is larger than 1 MiB"),
        (b"a: [" + b"1," * 100_001 + b"]", "it has more than 100000 values"),
        (b"%YAML 9.9\n---\na: 1", "f.yaml:1:1: "),
        (b"? [a]\n: 1", "a key must be text, not a list"),
    ],
)
def test_what_is_not_one_yaml_mapping_is_refused_in_one_line(text: bytes, said: str) -> None:
    found = [str(complaint) for complaint in refused(text)]
    assert any(said in line for line in found), found
    assert all(line.isprintable() for line in found)


@pytest.mark.parametrize("directive", ["%YAML 2.0", "%FOO 1.1", "%TAG ! tag:x extra"])
def test_a_directive_that_yaml_does_not_take_is_to_be_removed(directive: str) -> None:
    assert "(remove this line: the file needs no directive)" in only(f"{directive}\n---\n{GOOD}")


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    assert "with all aliases written out" in only("\n".join(lines))


def test_aliases_cannot_nest_deeper_than_text() -> None:
    lines = ["a0: &a0 " + "[" * 50 + "]" * 50, "a1: &a1 " + "[" * 50 + "*a0" + "]" * 50]
    assert "it nests deeper than 64 levels" in only("\n".join(lines))


def test_a_repeated_key_names_the_line_of_the_first() -> None:
    found = only("version: 1\nresources: []\nversion: 1\n")
    assert found == 'f.yaml:3:1: the key "version" appears twice, first in line 1 (keep one of the two)'


@pytest.mark.parametrize("key", ["no", "on", "1", "1.5", "2024-01-01", "~"])
def test_a_key_that_yaml_does_not_take_for_text_is_to_be_quoted(key: str) -> None:
    said = [str(complaint) for complaint in refused(f"{GOOD}{key}: 1\n")]
    assert any(f'put it in quotes: "{key}"' in line for line in said)


@pytest.mark.parametrize(
    "tag", ["!!python/object:os.system", "!mine", "!!binary", "!!set", "!!omap", "!!timestamp"]
)
def test_a_tag_makes_no_object(tag: str) -> None:
    assert "is not allowed (write a plain value)" in str(refused(f"version: {tag} x\nresources: []")[0])


def test_standard_tags_set_the_type_of_a_value(read: Callable[[str], Settings]) -> None:
    assert read("version: !!int 1\nresources: !!seq []\nbackends: !!map {}").resources == ()


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(read: Callable[[str], Settings]) -> None:
    assert read("\ufeff" + GOOD.replace("\n", "\r\n")) == Settings()


def test_defaults_can_be_merged_and_own_keys_win(read: Callable[[str], Settings]) -> None:
    text = """
version: 1
resources:
- &base {name: a.b/one, backend: card, prefer: pack, where: {vendor: x}}
- {<<: *base, name: a.b/two, where: {vendor: y}}
- {<<: [{inject: cdi}, *base], name: a.b/three, where: {vendor: z}}
"""
    one, two, three = read(text).resources
    assert (one.prefer, two.prefer, three.prefer) == ("pack", "pack", "pack")
    assert (two.name, two.inject, three.inject) == ("a.b/two", "direct", "cdi")


def test_only_mappings_can_be_merged() -> None:
    assert any("must be a mapping to merge" in str(c) for c in refused(GOOD + "<<: [3]\n"))


def test_a_file_with_very_many_faults_stops_being_read() -> None:
    found = refused(GOOD + "".join(f"k{n}: 1\n" for n in range(5000)))
    assert len(found) == MAX_DIAGNOSTICS + 1
    assert "too many errors" in str(found[-1])


@pytest.mark.parametrize("name", ["missing.yaml", "nul\0.yaml", "dir"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "dir").mkdir()
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / name, lambda _paths, _wanted: Catalog())
    (complaint,) = caught.value.diagnostics
    assert complaint.line == 0
    assert str(complaint).isprintable()


def test_a_file_without_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="it cannot be read: permission denied"):
        load(tmp_path / "secret.yaml", lambda _paths, _wanted: Catalog())


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "endless.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load(file, lambda _paths, _wanted: Catalog())


@pytest.mark.parametrize(
    ("path", "what"),
    [("/dev/zero", "a device"), ("/proc/version", "a file of the kernel"), ("socket", "a socket")],
)
def test_what_is_no_file_with_a_content_is_refused_at_once(tmp_path: Path, path: str, what: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "socket"))
        with pytest.raises(ConfigError, match=f"this is {what}, not a file with a content"):
            load(tmp_path / path, lambda _paths, _wanted: Catalog())


def test_both_yaml_parsers_give_the_same_document(one: Callable[[str], str]) -> None:
    text = one("where: {vendor: [a, 'b'], numaNode: '0-3'}").encode()
    assert parse(text, Diagnostics("f"), parser=yaml.SafeLoader) == parse(text, Diagnostics("f"))
    for bad in ("a: [1", "a: *x", "\t- 1", "a: \x07", "a: b: c", "%YAML 9.9\n---\na: 1"):
        with pytest.raises(ConfigError) as caught:
            parse(bad.encode(), Diagnostics("f"), parser=yaml.SafeLoader)
        assert all(str(complaint).isprintable() for complaint in caught.value.diagnostics)


MARKS = [*"{}[]:,-?&*!|>'\"%@`#~<\n\t ", "\n  ", "\n- ", ": ", "&a ", "*a", "<<: ", "!!str ", "---", "..."]
WORDS = [
    "version",
    "resources",
    "1",
    "name",
    "a.b/c",
    "where",
    "backend",
    "card",
    "share",
    "not",
    "0x1",
    "no",
]
ODD = ["\x85", "\u2028", "\ufeff"]
tokens = st.lists(st.sampled_from(MARKS + WORDS + ODD), max_size=40).map("".join)


def _never_more_than_complaints(text: str | bytes, catalog: Catalog) -> None:
    try:
        loads(text, "f.yaml", lambda _paths, _wanted: catalog)
    except ConfigError as error:
        assert error.diagnostics
        for complaint in error.diagnostics:
            assert str(complaint).isprintable()
        places = [(complaint.line, complaint.column) for complaint in error.diagnostics]
        assert places == sorted(places)


@given(data=st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_complaints(data: bytes, catalog: Catalog) -> None:
    _never_more_than_complaints(data, catalog)


@given(text=st.text(st.characters(), max_size=100) | tokens)
def test_random_text_raises_nothing_but_complaints(text: str, catalog: Catalog) -> None:
    _never_more_than_complaints(text, catalog)


@given(name=st.text(st.characters(), max_size=50))
def test_a_strange_file_name_stays_on_one_line(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads("", name, lambda _paths, _wanted: Catalog())
    assert str(caught.value).isprintable()


def test_an_anchor_does_not_reach_into_the_next_document() -> None:
    data = b"a: &anchor 1\n---\nb: *anchor\n"
    with pytest.raises(ConfigError, match=r"f\.yaml:3:4: the alias \*anchor has no anchor"):
        parse_all(data, Diagnostics("f.yaml"), if_empty="")
