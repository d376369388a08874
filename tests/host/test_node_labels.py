"""Feature files: their content, and that devhost changes only its own."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.host.node_labels import (
    HEADER,
    MAX_FILE,
    FeatureDirectory,
    legal,
    problem,
    render,
    sorted_out,
)

LEGAL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
"""Kubernetes' rule for a label's value (k8s.io/apimachinery, IsValidLabelValue)."""


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA  GeForce (TM)  RTX", "NVIDIA-GeForce-TM-RTX"),
        ("1g.5gb+me", "1g.5gbme"),
        ("570.86.15", "570.86.15"),
        ("", ""),
        ("…", ""),
        ("-x_", "x"),
        ("a\nb=c", "abc"),
        ("x" * 80, "x" * 63),
        ("x" * 62 + "-y", "x" * 62),
    ],
)
def test_values_are_made_valid_as_in_gpu_feature_discovery(text: str, label: str) -> None:
    assert legal(text) == label


@given(st.text())
def test_any_text_becomes_a_valid_value(text: str) -> None:
    value = legal(text)
    assert len(value) <= 63
    assert LEGAL.fullmatch(value)
    assert legal(value) == value


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu.count", "plain", "a/b", "x.feature.node.kubernetes.io/y", "a/" + "b" * 63]
)
def test_names_that_kubernetes_accepts_are_accepted(name: str) -> None:
    assert problem(name) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "letters"),
        ("a/", "letters"),
        ("/b", "domain"),
        ("A/b", "domain"),
        ("a/b/c", "domain"),
        ("a/b c", "letters"),
        ("a/b=c", "letters"),
        ("a/-b", "letters"),
        ("#a", "letters"),
        ("a/b\n", "letters"),
        ("a/" + "b" * 64, "longer"),
        ("a" * 254 + "/b", "domain"),
        ("kubernetes.io/hostname", "itself"),
        ("node.kubernetes.io/x", "itself"),
    ],
)
def test_names_that_kubernetes_refuses_are_refused_with_the_reason(name: str, words: str) -> None:
    assert words in problem(name)


def test_one_invalid_label_affects_no_other() -> None:
    good, wrong = sorted_out({"a/n": 3, "a/t": True, "a/b c": "x", "a/v": "x y", 7: "x", "a/f": 1.5}.items())
    assert good == {"a/n": "3", "a/t": "true", "a/v": "x-y"}
    assert len(wrong) == 3


def test_a_file_consists_of_comments_and_names_with_values() -> None:
    assert render({"a/b": "c", "a/d": ""}).decode() == f"{HEADER}a/b=c\na/d=\n"
    assert HEADER.startswith("# ") and not HEADER.startswith("# +")


def test_a_file_is_written_once_and_readable_by_all(tmp_path: Path) -> None:
    place = FeatureDirectory(tmp_path / "features.d")
    place.write("toy", {"a/b": "c"})
    file = place.path("toy")
    before = file.stat()
    assert (file.name, stat.S_IMODE(before.st_mode)) == ("devhost_toy", 0o644)
    place.write("toy", {"a/b": "c"})
    assert file.stat().st_ino == before.st_ino
    place.write("toy", {"a/b": "d"})
    assert file.stat().st_ino != before.st_ino
    assert [path.name for path in place.directory.iterdir()] == ["devhost_toy"]


def test_without_labels_there_is_no_file_and_no_directory(tmp_path: Path) -> None:
    place = FeatureDirectory(tmp_path / "features.d")
    place.write("toy", {})
    place.sweep(())
    assert not place.directory.exists()
    place.write("toy", {"a/b": "c"})
    place.write("toy", {})
    assert list(place.directory.iterdir()) == []


def test_only_own_files_are_removed(tmp_path: Path) -> None:
    place, other = FeatureDirectory(tmp_path), FeatureDirectory(tmp_path, "/another/kubelet")
    for name in ("gfd", "devhost", "devhost-notes", ".devhost"):
        (tmp_path / name).touch()
    (tmp_path / ".devhost_abc.part").touch()
    os.utime(tmp_path / ".devhost_abc.part", (0, 0))
    place.write("toy", {"a/b": "c"})
    place.write("gone", {"a/b": "c"})
    other.write("toy", {"a/b": "c"})
    place.sweep({"toy"})
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"gfd", "devhost", "devhost-notes", ".devhost", "devhost_toy", other.path("toy").name}


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("x")
    place = FeatureDirectory(tmp_path / "features.d")
    place.directory.mkdir()
    place.path("toy").symlink_to(target)
    place.write("toy", {"a/b": "c"})
    assert target.read_text() == "x"
    assert not place.path("toy").is_symlink()


def test_a_file_that_is_too_large_is_not_written(tmp_path: Path) -> None:
    place = FeatureDirectory(tmp_path)
    with pytest.raises(ValueError, match=f"{MAX_FILE} that are read"):
        place.write("toy", {f"a/{n}": "x" * 63 for n in range(2000)})
    assert list(tmp_path.iterdir()) == []
    place.write("toy", {"a/b": "x" * (MAX_FILE - len(render({"a/b": ""})))})
    assert place.path("toy").stat().st_size == MAX_FILE
