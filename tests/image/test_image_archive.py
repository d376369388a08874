"""The image is what docs/image.md says: small, closed, reproducible, and without a trace of who made it."""

from __future__ import annotations

import _imp
import json
import os
import re
import stat
import struct
from pathlib import Path

import pytest
from image.archive import Archive
from image.contents import MEGABYTE, layers, packages, python

from devhost import __version__

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(file.parent.name for file in ROOT.glob("plugins/*/pyproject.toml"))
SITE = "opt/devhost/lib/python3.13/site-packages"
LARGEST = 90_000_000
"""Bytes, compressed: with room for Debian's updates."""

pytestmark = pytest.mark.timeout(600)


def test_its_name_and_labels_identify_it(archive: Archive) -> None:
    labels = archive.config["Labels"]
    assert archive.names == [f"devhost:{__version__}"]
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.description"]
    assert re.fullmatch(r"unknown|[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])


def test_it_starts_devhost_as_root_and_no_shell(archive: Archive) -> None:
    config = archive.config
    assert (config["User"], config["Entrypoint"]) == ("0:0", ["devhost"])
    assert not config.keys() & {"Cmd", "Volumes", "ExposedPorts", "Shell"}
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    assert environment.keys() == {"PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONOPTIMIZE"}
    first = environment["PATH"].split(":")[0].lstrip("/")
    ((_, script),) = archive.contents(lambda name: name == f"{first}/devhost")
    interpreter = script.decode().splitlines()[0].removeprefix("#!")
    assert archive.resolve(interpreter) == "usr/bin/python3.13"
    assert archive.files[f"{first}/devhost"].info.mode & 0o777 == 0o755


def test_it_contains_no_trace_of_the_builder_or_the_package_mirror(archive: Archive) -> None:
    told = json.dumps(archive.image)
    for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "http_proxy", "https_proxy", "DEBIAN_MIRROR"):
        assert os.environ.get(variable, "\0") not in told
    assert not re.search(r"index-url|PIP_INDEX|_proxy|BEGIN CERTIFICATE", told)
    assert str(Path.home()) + "/" not in told
    left = {"etc/pip.conf", "etc/apt/apt.conf.d/90builder", "run/ca.crt", "etc/apt/apt.conf.d/99mmdebstrap"}
    assert left & archive.files.keys() == set()
    assert [name for name in archive.files if name.startswith("run/secrets")] == []
    for name in ("etc/resolv.conf", "etc/hostname", "etc/machine-id", "etc/hosts"):
        entry = archive.files.get(name)
        assert entry is None or entry.info.size == 0, name
    sources = archive.contents(lambda name: name.startswith("etc/apt/sources.list.d/"))
    hosts = set(re.findall(r"https?://([^/\s]+)", "".join(text.decode() for _, text in sources)))
    assert hosts <= {"deb.debian.org"}


def test_nothing_in_it_makes_a_program_more_than_its_caller(archive: Archive) -> None:
    files = {name: entry.info for name, entry in archive.files.items() if entry.info.isreg()}
    assert [name for name, info in files.items() if info.mode & (stat.S_ISUID | stat.S_ISGID)] == []


def test_only_root_owns_and_writes_what_it_runs(archive: Archive) -> None:
    for name, entry in archive.files.items():
        if entry.info.issym() or not name.startswith(("opt/", "usr/", "etc/")):
            continue
        assert entry.info.uid == 0, name
        assert not entry.info.mode & stat.S_IWOTH, name
        if name.startswith("opt/"):
            assert entry.info.gid == 0, name


def test_it_has_no_installer_no_compiler_and_no_left_overs(archive: Archive) -> None:
    names = archive.files.keys()
    directories = re.compile(r"(opt/devhost|usr|usr/local)/s?bin/")
    programs = {name.rpartition("/")[2] for name in names if directories.match(name)}
    assert not programs & {"pip", "pip3", "gcc", "cc", "g++", "make", "ld", "curl", "wget", "git"}
    assert [name for name in names if re.search(r"/(pip|ensurepip|setuptools|hatchling)/", name)] == []
    lists = ("var/lib/apt/lists/", "var/cache/apt/", "var/log/", "src/", "wheels/", "root/.cache/", "tmp/")
    assert [name for name in names if name.startswith(lists) and archive.files[name].info.isreg()] == []
    assert [name for name in names if re.search(r"devhost_\w+/tests/", name)] == []
    # the only programs of devhost's own environment
    bin_ = {name for name in names if name.startswith("opt/devhost/bin/")}
    assert bin_ == {f"opt/devhost/bin/{name}" for name in ("devhost", "python", "python3", "python3.13")}


def test_every_package_in_plugins_is_in_it(archive: Archive) -> None:
    for plugin in PLUGINS:
        assert f"{SITE}/devhost_{plugin}/__init__.py" in archive.files
        assert f"{SITE}/devhost_{plugin}-{__version__}.dist-info/entry_points.txt" in archive.files
        assert f"{SITE}/devhost_{plugin}-{__version__}.dist-info/licenses/LICENSE" in archive.files
    assert f"{SITE}/devhost/devhost.yaml" in archive.files


def test_what_no_node_needs_is_not_in_it(archive: Archive) -> None:
    absent = (f"{SITE}/devhost_import", f"{SITE}/devhost_testing")
    assert [name for name in archive.files if name.startswith(absent)] == []


def test_it_has_exactly_the_versions_that_are_written_down(archive: Archive) -> None:
    text = (ROOT / "deploy" / "requirements.txt").read_text(encoding="utf-8")
    wanted = set(re.findall(r"(?m)^([\w.-]+)==([^\s\\]+)", text)) | {("devhost", __version__)}
    wanted |= {(f"devhost-{plugin}", __version__) for plugin in PLUGINS}
    found = re.findall(rf"(?m)^{SITE}/([\w.]+)-([^/-]+)\.dist-info/METADATA$", "\n".join(archive.files))
    assert {(name.lower().replace("_", "-"), version) for name, version in found} == wanted


def test_every_package_keeps_its_licence_and_is_listed(archive: Archive) -> None:
    ((_, status),) = archive.contents(lambda name: name == "var/lib/dpkg/status")
    installed = re.findall(r"(?m)^Package: (.+)\nStatus: install ok installed$", status.decode())
    assert "python3-pyverbs" in installed
    documents = {archive.resolve(f"usr/share/doc/{name}") for name in installed}
    assert [one for one in documents if f"{one}/copyright" not in archive.files] == []
    found = re.findall(rf"(?m)^{SITE}/([\w.]+-[^/-]+\.dist-info)/METADATA$", "\n".join(archive.files))
    licensed = {
        name.split("/")[5]
        for name in archive.files
        if re.search(r"(?i)/(licen[sc]e|copying)", name) and ".dist-info/" in name
    }
    # NVIDIA's binding names its licence, and brings no text of it
    assert [one for one in found if one not in licensed and not one.startswith("nvidia_ml_py-")] == []


def test_pyverbs_is_debians_and_seen_by_devhosts_python(archive: Archive) -> None:
    assert "usr/lib/python3/dist-packages/pyverbs/__init__.py" in archive.files
    ((_, text),) = archive.contents(lambda name: name == "opt/devhost/pyvenv.cfg")
    assert "include-system-site-packages = true" in text.decode()
    installed = dict(packages(archive))
    assert {"python3-pyverbs", "ibverbs-providers", "libudev1", "python3"} <= installed.keys()
    assert "systemd" not in installed


def test_bytecode_is_there_and_does_not_depend_on_the_times_of_files(archive: Archive) -> None:
    """With times, an image whose times are all alike would compile each module at each start."""
    trees = (f"{SITE}/", "usr/lib/python3.13/", "usr/lib/python3/")
    files = {name for name, entry in archive.files.items() if entry.info.isreg()}
    sources = {name for name in files if name.startswith(trees) and name.endswith(".py")}
    compiled = {name: _bytecode(name) for name in sources}
    assert len(sources) > 1000
    assert sorted(name for name in sources if compiled[name] not in files) == []
    wanted = sources | set(compiled.values())
    contents = dict(archive.contents(wanted.__contains__))
    for source, bytecode in compiled.items():
        # PEP 552; the hash is keyed with the number of the Python that compiled
        magic, flags, digest = struct.unpack("<II8s", contents[bytecode][:16])
        assert flags & 1, f"{source}: bound to a time"
        assert digest == _imp.source_hash(magic, contents[source]), source


def test_it_is_small(archive: Archive) -> None:
    assert sum(layer.size for layer in archive.layers) < LARGEST
    assert [name for name in archive.files if re.match(r"usr/share/(man|locale)/.", name)] == []
    assert not any(name.startswith("usr/lib/udev/hwdb.d/") for name in archive.files)
    assert python(archive)["devhost"] > 1_000_000


def test_its_size_is_the_one_on_the_page(archive: Archive) -> None:
    page = (ROOT / "docs" / "image.md").read_text(encoding="utf-8")
    told = re.search(r"(\d+) MB unpacked, (\d+) MB compressed", page)
    assert told is not None
    measured = (sum(layers(archive)), sum(layer.size for layer in archive.layers))
    for number, size in zip(told.groups(), measured, strict=True):
        assert abs(size / MEGABYTE / int(number) - 1) < 0.1, (
            f"{number} MB, and measured {size / MEGABYTE:.0f} MB"
        )


def _bytecode(source: str) -> str:
    directory, _, name = source.rpartition("/")
    return f"{directory}/__pycache__/{name.removesuffix('.py')}.cpython-313.opt-2.pyc"
