"""How the programs for the chart's tests are found and made, where the machine or its network is of no help.

These need neither Go nor a network: Go is a small script here.
"""

from __future__ import annotations

from pathlib import Path

import programs
import pytest
from onenode import fetching
from onenode.binaries import UNAVAILABLE
from onenode.fetching import Unavailable, Unreachable


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an empty cache, on which nobody waits before trying again."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in programs.PROGRAMS:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(fetching, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    monkeypatch.setattr(fetching, "NAME", "e2e")


def install(directory: Path, script: str) -> Path:
    """A Go that notes each call in a file, which is returned, and then does what ``script`` says."""
    program, calls = directory / "bin" / "go", directory / "go.calls"
    program.write_text(f"#!/bin/sh\necho \"$@\" >> '{calls}'\n{script}\n")
    program.chmod(0o755)
    return calls


BUILDS = """
if [ "$1" = build ]; then
    while [ "$1" != -o ]; do shift; done
    printf '#!/bin/sh\\n' > "$2"; chmod +x "$2"
fi
"""


def test_what_is_made_is_found_from_then_on(tmp_path: Path) -> None:
    calls = install(tmp_path, BUILDS)
    with pytest.raises(programs.Missing, match=r"helm is not in .*: run `make chart`, or set HELM"):
        programs.find("helm")
    path = programs.helm()
    assert path == programs.find("helm") == programs.helm()
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["get", "build"]


def test_a_changed_program_of_this_repository_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, BUILDS)
    first = programs.make("kubetypes")
    source = tmp_path / "main.go"
    source.write_text("package main\n")
    kind = programs.PROGRAMS["kubetypes"]
    monkeypatch.setitem(
        programs.PROGRAMS, "kubetypes", programs.Program(kind.version, kind.modules, source=source)
    )
    assert programs.make("kubetypes") != first


def test_without_go_the_run_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SystemExit) as caught:
        programs.main()
    assert caught.value.code == UNAVAILABLE
    said = "helm is not built yet, and there is no Go to build it with"
    assert capsys.readouterr().out == f"chart: skipped, a program cannot be had here: {said}\n"


def test_without_a_network_it_is_tried_three_times(tmp_path: Path) -> None:
    calls = install(tmp_path, "echo 'dial tcp: network is unreachable' >&2; exit 1")
    with pytest.raises(
        Unavailable, match=r"kustomize: go get: dial tcp.*; KUSTOMIZE can name a program"
    ) as caught:
        programs.kustomize()
    assert not isinstance(caught.value, Unreachable), "nobody else tries again"
    assert len(calls.read_text().splitlines()) == 3


def test_what_does_not_compile_is_an_error_with_the_place_of_its_log(tmp_path: Path) -> None:
    install(tmp_path, "echo 'undefined: x' >&2; exit 1")
    with pytest.raises(SystemExit, match=r"chart: helm: go get: undefined: x \(see .*failure\.log\)"):
        programs.main()


def test_another_program_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELM", "/bin/true")
    assert programs.helm() == Path("/bin/true")
    monkeypatch.setenv("HELM", str(tmp_path / "nothing"))
    with pytest.raises(programs.Missing, match=r"HELM=.*nothing is not a program"):
        programs.helm()
