"""The repository keeps its own rules: packages are whole, modules are small and documented."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import dependency_group
import pytest
import yaml
from kit.command import completed

from devhost import __version__

ROOT = Path(__file__).resolve().parents[1]
DAEMONSET = ROOT / "deploy" / "kustomize" / "base" / "daemonset.yaml"
PLUGINS = sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))
PACKAGES = sorted([*PLUGINS, *(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))])
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")


def _sources(*directories: str) -> list[Path]:
    files = (file for directory in directories for file in (ROOT / directory).rglob("*.py"))
    return sorted(file for file in files if not GENERATED.search(file.name))


LIBRARY = _sources("src", *(f"{package.parent.name}/{package.name}/src" for package in PACKAGES))
EVERYTHING = sorted({*LIBRARY, *_sources("tests", "tools", "bench", "plugins", "packages", "examples")})


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def project(directory: Path) -> dict[str, Any]:
    """The ``project`` table of a package."""
    return dict(tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def test_every_module_and_class_has_a_docstring() -> None:
    silent = []
    for file in LIBRARY:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        silent += [] if ast.get_docstring(tree) else [name(file)]
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not _one_method(node):
                silent += [] if ast.get_docstring(node) else [f"{name(file)} {node.name}"]
    assert silent == []


def _one_method(node: ast.ClassDef) -> bool:
    """Whether a class is a protocol whose single method says it all: ``class CanProbe(Protocol)``."""
    protocol = any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
    return protocol and len(node.body) == 1


def _overload(node: ast.FunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in node.decorator_list)


def test_every_function_of_the_public_api_has_a_docstring() -> None:
    trees = [ast.parse(file.read_text()) for file in (ROOT / "src" / "devhost" / "backend").glob("*.py")]
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    public = [node for node in functions if not node.name.startswith("_") and not _overload(node)]
    assert [node.name for node in public if not ast.get_docstring(node)] == []


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
    assert [name(file) for file in EVERYTHING if later.search(file.read_text(encoding="utf-8"))] == []


def test_test_files_have_unique_names() -> None:
    """They share one namespace in reports, and in pytest's modes that import by name."""
    names = [file.name for file in EVERYTHING if file.name.startswith("test_")]
    assert sorted({one for one in names if names.count(one) > 1}) == []


def test_no_class_name_has_more_than_three_meanings() -> None:
    classes: dict[str, list[str]] = {}
    for file in LIBRARY:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name.removeprefix("_"), []).append(f"{name(file)}:{node.lineno}")
    assert {word: places for word, places in classes.items() if len(places) > 3} == {}


def test_the_host_has_one_version_everywhere() -> None:
    assert project(ROOT)["version"] == __version__
    image = re.findall(r"devhost:([0-9][\w.]*)", DAEMONSET.read_text())
    assert set(image) == {__version__}
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "devhost" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_there_is_a_plugin_package() -> None:
    assert "udev" in [plugin.name for plugin in PLUGINS]


@pytest.mark.parametrize("place", PACKAGES, ids=lambda path: path.name)
def test_a_package_is_whole(place: Path) -> None:
    about = project(place)
    package = f"devhost_{place.name}"
    assert about["name"] == f"devhost-{place.name}"
    assert about["version"] == __version__
    assert f"devhost=={__version__}" in about["dependencies"]
    assert about["requires-python"] == project(ROOT)["requires-python"]
    assert about["license"] == project(ROOT)["license"]
    for needed in ("README.md", "tests", f"src/{package}/__init__.py", f"src/{package}/py.typed"):
        assert (place / needed).exists(), needed


def test_a_plugin_package_is_found_and_documented() -> None:
    for plugin in PLUGINS:
        assert project(plugin)["entry-points"]["devhost"] == {plugin.name: f"devhost_{plugin.name}"}
        assert (ROOT / "docs" / "backends" / f"{plugin.name}.md").exists(), plugin.name


def test_every_module_of_a_package_begins_with_its_purpose() -> None:
    files = [file for place in PACKAGES for file in (place / "src" / f"devhost_{place.name}").rglob("*.py")]
    assert [name(file) for file in files if not ast.get_docstring(ast.parse(file.read_text()))] == []


def test_the_host_is_typed_for_others() -> None:
    assert (ROOT / "src" / "devhost" / "py.typed").exists()


def test_supported_pythons_are_named_once_and_alike() -> None:
    versions = ["3.11", "3.12", "3.13", "3.14"]
    named = [one.rpartition(" ")[2] for one in project(ROOT)["classifiers"] if "Python :: 3." in one]
    assert named == versions
    for script in ("tools/setup", "tools/test-pythons", "tools/packages"):
        assert set(versions) <= set(re.findall(r"3\.1\d", (ROOT / script).read_text())), script


def test_every_make_target_has_a_sentence() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"(?m)^\.PHONY: (.*)$", text)
    assert phony is not None
    documented = set(re.findall(r"(?m)^([a-z0-9-]+):[^#\n]*## ", text))
    assert set(phony[1].split()) == documented


@pytest.mark.parametrize("target", ["gpu", "page"])
def test_options_alone_choose_among_the_tests_of_a_target(target: str) -> None:
    def command(tests: str) -> list[str]:
        printed = completed("make", "-n", target, f"TESTS={tests}", cwd=ROOT, check=True).stdout
        return printed.splitlines()[-1].split()

    assert command("-k word")[-3:] == [f"tests/{target}", "-k", "word"]
    assert command("")[-1] == f"tests/{target}"
    assert command("tests/other.py -q")[-2:] == ["tests/other.py", "-q"]
    assert f"tests/{target}" not in command("tests/other.py")


@pytest.mark.parametrize("script", ["tools/setup", "tools/test-pythons", "tools/packages", ".ci/run"])
def test_scripts_can_be_run_and_parsed(script: str) -> None:
    file = ROOT / script
    assert os.access(file, os.X_OK)
    shell = file.read_text().splitlines()[0].rpartition("/")[2].split()[-1]
    subprocess.run([shell, "-n", str(file)], check=True, timeout=240)


def test_packages_that_cannot_be_installed_are_named(tmp_path: Path) -> None:
    bin_ = _tools(tmp_path / "bin", "bash sort")
    done = completed(bin_ / "bash", ROOT / "tools" / "packages", "page", env={"PATH": str(bin_)}, check=True)
    assert done.stdout == "packages: not installed, run as root: apt-get install chromium chromium-driver\n"


def test_dependency_groups_are_read_with_what_they_include() -> None:
    groups = {"a": ["one>=1", {"include-group": "B_b"}], "b-b": ["two"]}
    assert list(dependency_group.requirements(groups, "a")) == ["one>=1", "two"]
    with pytest.raises(ValueError, match="include each other: a → a"):
        list(dependency_group.requirements({"a": [{"include-group": "a"}]}, "a"))


def _checkout(directory: Path) -> Path:
    """The files that ``tools/setup`` reads, in a directory of their own."""
    (directory / "tools").mkdir()
    for place in ("plugins/one", "packages/kit"):
        (directory / place).mkdir(parents=True)
        (directory / place / "pyproject.toml").touch()
    shutil.copy(ROOT / "tools" / "setup", directory / "tools" / "setup")
    (directory / "pyproject.toml").touch()
    return directory


def _setup(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return completed("sh", "tools/setup", ".venv", cwd=checkout, env=environment)


def _fake(directory: Path, program: str, script: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / program).write_text(f"#!/bin/sh\n{script}\n")
    (directory / program).chmod(0o755)


TOOLS = "dirname cat cksum ls rm sh mkdir"
"""The programs ``tools/setup`` needs besides a Python."""


def _tools(directory: Path, programs: str = TOOLS) -> Path:
    directory.mkdir()
    for program in programs.split():
        found = shutil.which(program)
        assert found is not None
        (directory / program).symlink_to(found)
    return directory


def test_set_up_reports_an_old_python(tmp_path: Path) -> None:
    bin_ = _tools(tmp_path / "bin")
    _fake(bin_, "python3", '[ "$1" = --version ] && echo Python 3.10.12 && exit 0; exit 1')
    done = _setup(_checkout(tmp_path), PATH=str(bin_))
    assert done.returncode == 1
    assert done.stderr.startswith(
        "setup: devhost needs Python 3.11 or newer, this machine has Python 3.10.12"
    )


def test_set_up_names_the_package_when_venv_is_missing(tmp_path: Path) -> None:
    bin_ = _tools(tmp_path / "bin")
    _fake(bin_, "python3", 'case "$2" in *ensurepip*) exit 1;; *print*) echo python3.11-venv;; esac; exit 0')
    done = _setup(_checkout(tmp_path), PATH=str(bin_))
    assert done.returncode == 1
    line = "setup: python3 cannot make virtual environments: apt-get install python3.11-venv\n"
    assert done.stderr == line


def test_an_interrupted_set_up_is_done_again_and_a_finished_one_is_not(tmp_path: Path) -> None:
    checkout, bin_, pip = _checkout(tmp_path), _tools(tmp_path / "bin"), tmp_path / "pip"
    venv_python = f'case "$*" in *"-m pip"*) [ -e {pip}-works ] || exit 1; echo run >> {pip};; esac; exit 0'
    _fake(bin_, "python3", "exit 0")
    (checkout / ".venv").mkdir()
    _fake(checkout / ".venv" / "bin", "python", venv_python)

    assert _setup(checkout, PATH=str(bin_)).returncode == 1
    Path(f"{pip}-works").touch()
    assert _setup(checkout, PATH=str(bin_)).returncode == 0
    assert _setup(checkout, PATH=str(bin_)).returncode == 0
    assert pip.read_text().splitlines() == ["run"]

    (checkout / "plugins" / "one" / "pyproject.toml").write_text("# another dependency\n")
    assert _setup(checkout, PATH=str(bin_)).returncode == 0
    assert pip.read_text().splitlines() == ["run", "run"]


WITHOUT_FLOCK = f"{TOOLS} sleep"
WITH_FLOCK = f"{WITHOUT_FLOCK} flock"


@pytest.mark.parametrize("programs", [WITH_FLOCK, WITHOUT_FLOCK], ids=["flock", "no flock"])
def test_two_set_ups_in_one_checkout_install_once_and_the_second_waits(tmp_path: Path, programs: str) -> None:
    checkout, bin_, pip = _checkout(tmp_path), _tools(tmp_path / "bin", programs), tmp_path / "pip"
    slow = f"echo run >> {pip}; while [ ! -e {pip}-done ]; do sleep 0.02; done"
    _fake(bin_, "python3", "exit 0")
    (checkout / ".venv").mkdir()
    _fake(checkout / ".venv" / "bin", "python", f'case "$*" in *"-m pip"*) {slow};; esac; exit 0')

    def begin() -> subprocess.Popen[str]:
        command, own = ["sh", "tools/setup", ".venv"], {"PATH": str(bin_)}
        return subprocess.Popen(command, cwd=checkout, env=own, stderr=subprocess.PIPE, text=True)

    with begin() as first:
        assert first.stderr is not None
        assert first.stderr.readline().startswith("setup: installing devhost")
        with begin() as second:
            assert second.stderr is not None
            assert second.stderr.readline() == f"setup: waiting for another make in {checkout}\n"
            Path(f"{pip}-done").touch()
            assert (first.wait(60), second.wait(60)) == (0, 0)
            assert second.stderr.read() == ""
    assert pip.read_text().splitlines() == ["run"]
    assert not (checkout / ".venv-setup.lock").exists()


@pytest.mark.parametrize("programs", [WITH_FLOCK, WITHOUT_FLOCK], ids=["flock", "no flock"])
def test_a_set_up_that_was_killed_blocks_no_other(tmp_path: Path, programs: str) -> None:
    checkout, bin_ = _checkout(tmp_path), _tools(tmp_path / "bin", programs)
    _fake(bin_, "python3", "exit 0")
    (checkout / ".venv").mkdir()
    _fake(checkout / ".venv" / "bin", "python", "exit 0")
    gone = subprocess.Popen(["true"])
    gone.wait()
    (checkout / ".venv-setup.lock").mkdir()
    (checkout / ".venv-setup.lock" / "pid").write_text(f"{gone.pid}\n")
    done = _setup(checkout, PATH=str(bin_))
    assert (done.returncode, "waiting" in done.stderr) == (0, False)


def test_of_two_set_ups_that_find_a_killed_one_only_one_takes_its_lock(tmp_path: Path) -> None:
    checkout, bin_, pip = _checkout(tmp_path), _tools(tmp_path / "bin", f"{TOOLS} sleep"), tmp_path / "pip"
    real = (bin_ / "cat").readlink()
    (bin_ / "cat").unlink()
    held = 'echo read >> "$GATE-read"; while [ ! -e "$GATE" ]; do sleep 0.02; done'
    _fake(bin_, "cat", f'{real} "$@"; code=$?; case "$*" in */pid) {held};; esac; exit $code')
    slow = f"while [ ! -e {pip}-done ]; do sleep 0.02; done"
    _fake(bin_, "python3", "exit 0")
    (checkout / ".venv").mkdir()
    _fake(checkout / ".venv" / "bin", "python", f'case "$*" in *"-m pip"*) {slow};; esac; exit 0')
    gone = subprocess.Popen(["true"])
    gone.wait()
    (checkout / ".venv-setup.lock").mkdir()
    (checkout / ".venv-setup.lock" / "pid").write_text(f"{gone.pid}\n")

    def begin(gate: Path) -> subprocess.Popen[str]:
        command, own = ["sh", "tools/setup", ".venv"], {"PATH": str(bin_), "GATE": str(gate)}
        return subprocess.Popen(command, cwd=checkout, env=own, stderr=subprocess.PIPE, text=True)

    gates = tmp_path / "first", tmp_path / "second"
    with begin(gates[0]) as first, begin(gates[1]) as second:
        assert first.stderr is not None and second.stderr is not None
        while not all(Path(f"{gate}-read").exists() for gate in gates):
            assert (first.poll(), second.poll()) == (None, None)
        gates[0].touch()
        installing = first.stderr.readline()
        gates[1].touch()
        waiting = second.stderr.readline()
        Path(f"{pip}-done").touch()
        assert (first.wait(60), second.wait(60)) == (0, 0)
    assert installing.startswith("setup: installing devhost")
    assert waiting == f"setup: waiting for another make in {checkout}\n"


def test_waiting_for_another_set_up_ends(tmp_path: Path) -> None:
    checkout, bin_ = _checkout(tmp_path), _tools(tmp_path / "bin", TOOLS)
    seconds = tmp_path / "seconds"
    _fake(bin_, "sleep", f"echo $1 >> {seconds}")
    (checkout / ".venv-setup.lock").mkdir()
    (checkout / ".venv-setup.lock" / "pid").write_text(f"{os.getpid()}\n")
    done = _setup(checkout, PATH=str(bin_))
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"setup: waiting for another make in {checkout}\n"
        f"setup: another make has worked in {checkout} for 900 s: end it, or\n"
    )
    assert seconds.read_text().splitlines() == ["1"] * 900


def test_development_tools_are_added_without_touching_what_is_installed(tmp_path: Path) -> None:
    checkout, bin_, pip = _checkout(tmp_path), _tools(tmp_path / "bin", WITH_FLOCK), tmp_path / "pip"
    _fake(bin_, "python3", "exit 0")
    (checkout / ".venv").mkdir()
    _fake(checkout / ".venv" / "bin", "python", f'case "$*" in *"-m pip"*) echo "$*" >> {pip};; esac; exit 0')
    assert _setup(checkout, PATH=str(bin_)).returncode == 0
    done = subprocess.run(
        ["sh", "tools/setup", ".venv", "dev"], cwd=checkout, env={"PATH": str(bin_)}, check=False, timeout=60
    )
    assert done.returncode == 0
    first, second = pip.read_text().splitlines()
    assert first.endswith("-e . -e plugins/one -e packages/kit")
    assert second.endswith("--disable-pip-version-check -r .venv/requirements-dev.txt")


def test_the_daemonset_takes_no_more_than_it_needs() -> None:
    daemonset = yaml.safe_load(DAEMONSET.read_text())
    pod = daemonset["spec"]["template"]["spec"]
    container = pod["containers"][0]
    security = container["securityContext"]
    assert pod["automountServiceAccountToken"] is False
    assert security["privileged"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert "subPath" not in mounts["/etc/devhost"]
    assert {path for path, mount in mounts.items() if not mount.get("readOnly")} == {
        "/run/devhost",
        "/var/lib/devhost",
        "/var/lib/kubelet/device-plugins",
        "/var/run/k8s.cni.cncf.io/devinfo/dp",  # device-info files for Multus
    }
    below = {path for path in mounts if path.startswith("/host")}
    assert below == {"/host/dev", "/host/sys", "/host/proc", "/host/run/udev", "/host/usr"}
    assert not pod.keys() & {"hostPID", "hostIPC"}
    grace = pod["terminationGracePeriodSeconds"]
    assert grace > 4


@pytest.mark.parametrize(
    ("memory", "flags", "free", "expected"),
    [
        ("{tmp}", 0, 1, "{tmp}"),
        ("{tmp}", os.ST_NODEV, 1, "/tmp"),
        ("{tmp}", os.ST_NOEXEC, 1, "/tmp"),
        ("{tmp}", 0, 0, "/tmp"),
        ("{tmp}/missing", 0, 1, "/tmp"),
    ],
)
def test_temporary_files_of_tests_have_short_paths_and_old_ones_are_removed(
    memory: str,
    flags: int,
    free: int,
    expected: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class System:
        f_flag, f_bavail, f_frsize = flags, free, 1

    assert request.config.option.basetemp is not None
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert conftest is not None
    monkeypatch.setattr(os, "statvfs", lambda _: System)
    monkeypatch.setattr(conftest, "MEMORY", memory.format(tmp=tmp_path))
    monkeypatch.setattr(conftest, "MEMORY_LEAST", 1)
    directory = Path(expected.format(tmp=tmp_path))
    old, recent = (Path(tempfile.mkdtemp(prefix="dh-", dir=directory)) for _ in range(2))
    os.utime(old, (0, 0))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # as $TMPDIR, or the login in its name, makes it
    place = conftest.short_place()
    try:
        assert (place.parent, len(place.name)) == (directory, len("dh-12345678"))
        assert (old.exists(), recent.exists()) == (False, True)
    finally:
        place.rmdir()
        recent.rmdir()
