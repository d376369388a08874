"""The unit file and its examples, checked with the tools of systemd."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from booted import UNIT
from kit.command import completed

ANALYZE = shutil.which("systemd-analyze")
EXAMPLES = sorted((UNIT.parent / "devhost.service.d.examples").glob("*.conf"))
README = UNIT.parent / "README.md"

THRESHOLD = 20
"""Ten times the exposure that the unit may have."""


def _version() -> int:
    if ANALYZE is None:
        return 0
    found = re.match(r"systemd (\d+)", completed(ANALYZE, "--version").stdout)
    return int(found[1]) if found else 0


needs_analyze = pytest.mark.skipif(_version() < 250, reason="no systemd-analyze of systemd 250 or newer")


def settings(file: Path) -> list[tuple[str, str]]:
    lines = (line for line in file.read_text().splitlines() if "=" in line and not line.startswith("#"))
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit in a separate root, in which its programs exist."""
    for program in ("opt/devhost/bin/devhost", "bin/mkdir", "bin/kill"):
        file = tmp_path / program
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    directory = tmp_path / "etc" / "systemd" / "system"
    directory.mkdir(parents=True)
    shutil.copy(UNIT, directory)
    for target in ("sysinit", "basic", "shutdown", "multi-user", "local-fs"):
        (directory / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    for slice_ in ("-", "system"):
        (directory / f"{slice_}.slice").write_text("[Unit]\nDefaultDependencies=no\n")
    return tmp_path


def verify(root: Path) -> str:
    assert ANALYZE is not None
    done = completed(ANALYZE, "verify", f"--root={root}", "--man=no", "devhost.service")
    assert done.returncode == 0, done.stderr
    return done.stderr


@needs_analyze
def test_systemd_accepts_the_unit(installed):
    assert verify(installed) == ""


@needs_analyze
def test_systemd_analyze_finds_errors(installed):
    unit = installed / "etc" / "systemd" / "system" / "devhost.service"
    unit.write_text(unit.read_text() + "\n[Service]\nProtectSytem=strict\n")
    assert "ProtectSytem" in verify(installed)


@needs_analyze
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_systemd_accepts_every_example(installed, example):
    directory = installed / "etc" / "systemd" / "system" / "devhost.service.d"
    directory.mkdir()
    shutil.copy(example, directory)
    assert verify(installed) == ""


@needs_analyze
def test_the_exposure_is_at_most_that_of_the_guide():
    assert ANALYZE is not None
    done = completed(ANALYZE, "security", "--offline=true", f"--threshold={THRESHOLD}", UNIT)
    assert done.returncode == 0, done.stdout
    measured = re.search(r"Overall exposure level for devhost.service: ([\d.]+) OK", done.stdout)
    assert measured, done.stdout
    promised = re.search(r"Overall exposure level for devhost.service: ([\d.]+) OK", README.read_text())
    assert promised, "the guide has no result of systemd-analyze"
    assert (
        float(measured[1]) <= float(promised[1]) + 0.3
    )  # other versions of systemd weigh a little otherwise


def test_it_starts_before_every_kubelet_and_waits_for_none():
    found = settings(UNIT)
    before = {unit for key, value in found if key == "Before" for unit in value.split()}
    assert before >= {
        "kubelet.service",
        *("k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service"),
        *("k0sworker.service", "k0scontroller.service", "snap.microk8s.daemon-kubelite.service"),
    }
    assert not {"Requires", "Wants", "BindsTo", "PartOf"} & dict(found).keys()


def test_a_reload_checks_the_configuration_in_use():
    """Only then does the command refuse an invalid one; so the guide uses a variable, not an option."""
    found = settings(UNIT)
    start, check = (
        next(value for key, value in found if key == name) for name in ("ExecStart", "ExecReload")
    )
    assert "run --config=${DEVHOST_CONFIG} " in start
    assert check.endswith("check ${DEVHOST_CONFIG}")
    assert ("Environment", "DEVHOST_CONFIG=/etc/devhost/devhost.yaml") in found
    assert "DEVHOST_CONFIG=" in README.read_text()


def test_the_state_directory_of_the_unit_is_that_of_devhost():
    """``StateDirectory=`` is below ``/var/lib``, created by systemd and writable in the sandbox."""
    assert ("StateDirectory", "devhost") in settings(UNIT)
    assert not any("--state-dir" in value for _, value in settings(UNIT))


def test_few_examples_add_a_capability_and_each_only_one():
    giving = {file.name: value for file in EXAMPLES for key, value in settings(file) if "Capab" in key}
    assert giving == {
        "eswitch.conf": "CAP_NET_ADMIN",
        "kubevirt.conf": "CAP_CHOWN",
        "timeslice.conf": "CAP_SYS_ADMIN",
        "partitions.conf": "CAP_SYS_ADMIN",
    }


def test_paths_opened_in_the_sandbox_are_created_before():
    """``-`` ignores a missing path, which would stay read-only while the service runs."""
    for file in (UNIT, *EXAMPLES):
        made = [word for key, value in settings(file) if key == "ExecStartPre" for word in value.split()]
        paths = [word for key, value in settings(file) if key == "ReadWritePaths" for word in value.split()]
        assert {path.removeprefix("-") for path in paths} <= set(made), file.name


def test_every_example_states_its_purpose_and_is_in_the_guide():
    text = README.read_text()
    for file in EXAMPLES:
        assert file.read_text().startswith("# "), file.name
        assert f"`{file.name}`" in text
