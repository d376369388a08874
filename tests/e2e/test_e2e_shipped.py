"""Tests of image and chart when one of them is not available. None needs a cluster."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from onenode import image, shipped


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with an outdated image, whose tool for images is a script of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(shipped.VARIABLE, raising=False)
    monkeypatch.setattr(shipped, "REPOSITORY", tmp_path)
    monkeypatch.setattr(shipped, "ARCHIVE", tmp_path / "image.tar")
    monkeypatch.setattr(shipped.programs, "make", lambda name: Path(name))
    monkeypatch.setattr(shipped.programs, "find", lambda name: Path(name))
    (tmp_path / "tools").mkdir()
    (tmp_path / "cache" / "devhost-e2e").mkdir(parents=True)
    (tmp_path / "image.tar").touch()
    return tmp_path / "tools" / "image.py"


def test_an_unavailable_image_skips_the_tests_with_the_reason(tool: Path) -> None:
    tool.write_text("import sys; print('image: skipped, there is no mirror'); sys.exit(77)")
    shipped.main()
    with pytest.raises(shipped.Missing, match="skipped, there is no mirror"):
        shipped.find()
    tool.write_text("")
    shipped.main()
    assert shipped.find() == shipped.Shipped(shipped.ARCHIVE, Path("helm"))


def test_an_image_that_is_wrong_is_an_error(tool: Path) -> None:
    tool.write_text("import sys; print('image: it does not start'); sys.exit(1)")
    with pytest.raises(SystemExit, match="e2e: there is no image: it does not start"):
        shipped.main()


def test_an_image_named_in_the_environment_is_used_instead_of_building_one(
    tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool.write_text("raise SystemExit(1)")
    monkeypatch.setenv(shipped.VARIABLE, str(tmp_path / "other.tar"))
    with pytest.raises(shipped.Missing, match=r"DEVHOST_E2E_IMAGE=.*other.tar is not a file"):
        shipped.find()
    (tmp_path / "other.tar").touch()
    shipped.main()
    assert shipped.find().archive == tmp_path / "other.tar"


def test_a_renamed_image_has_its_new_names_only(tmp_path: Path) -> None:
    described = {"digest": "sha256:0", "annotations": {"org.opencontainers.image.ref.name": "devhost:1"}}
    files = {"index.json": json.dumps({"manifests": [described]}).encode(), "blobs/sha256/0": b"{}"}
    with tarfile.open(tmp_path / "old", "w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    image.rename(tmp_path / "old", tmp_path / "new", "local.test/a:1", "local.test/a:2")
    with tarfile.open(tmp_path / "new") as archive:
        contents = {entry.name: archive.extractfile(entry).read() for entry in archive}
    assert contents["blobs/sha256/0"] == b"{}"
    names = [each["annotations"] for each in json.loads(contents["index.json"])["manifests"]]
    assert names == [{"io.containerd.image.name": f"local.test/a:{tag}"} for tag in (1, 2)]
