"""How the programs of the cluster are found and built if the machine or its network cannot provide them.

These need neither root nor network: Go and apt-get are small scripts here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from onenode import binaries, debian, fetching, kubernetes, probe
from onenode.fetching import Unavailable, Unreachable

UNREACHABLE = (
    '"Error": "k8s.io/kubernetes@v1.37.1: Get https://proxy/k8s.io: dial tcp: network is unreachable"',
    "go: k8s.io/api@v0.37.1: Get https://proxy/k8s.io/api: dial tcp: lookup proxy: no such host",
    "go: k8s.io/api@v0.37.1: reading https://proxy/k8s.io/api.zip: 502 Bad Gateway",
    "verifying module: Get https://sum/lookup: net/http: TLS handshake timeout",
)
TOO_LITTLE = (
    "go: go.mod requires go >= 1.26.0 (running go 1.19.8; GOTOOLCHAIN=local)",
    "k8s.io/api: /usr/lib/go/pkg/tool/compile: signal: killed",
    "write /cache/go-build/1: no space left on device",
)
BROKEN = (
    "./main.go:17:2: undefined: kubelet.NewKubeletCommand",
    "go: invalid version: unknown revision v1.99.9",
)


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an empty cache, without delays between tries."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES", raising=False)
    for name in binaries.NAMES:
        monkeypatch.delenv(binaries.variable(name), raising=False)
    monkeypatch.setattr(fetching, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    monkeypatch.setattr(probe, "why_not", str)


def install(directory: Path, name: str, script: str) -> Path:
    """A program that records each call in a file, which is returned, and then runs ``script``."""
    program, calls = directory / "bin" / name, directory / f"{name}.calls"
    program.write_text(f"#!/bin/sh\necho \"$@\" >> '{calls}'\n{script}\n")
    program.chmod(0o755)
    return calls


def says(text: str) -> str:
    return f"echo '{text}' >&2; exit 1"


@pytest.mark.parametrize("text", UNREACHABLE)
def test_a_failed_download_is_tried_three_times(tmp_path: Path, text: str) -> None:
    calls = install(tmp_path, "go", says(text))
    with pytest.raises(Unreachable, match=r"^go mod download: ") as caught:
        kubernetes.build(tmp_path)
    assert text[-30:].strip('"') in str(caught.value)
    assert len(calls.read_text().splitlines()) == 3


@pytest.mark.parametrize("text", TOO_LITTLE)
def test_too_small_a_machine_is_no_failure_of_the_project(tmp_path: Path, text: str) -> None:
    calls = install(tmp_path, "go", says(text))
    with pytest.raises(Unavailable) as caught:
        kubernetes.build(tmp_path)
    assert text in str(caught.value)
    assert len(calls.read_text().splitlines()) == 1


@pytest.mark.parametrize("text", BROKEN)
def test_a_kubernetes_that_does_not_compile_is_an_error(tmp_path: Path, text: str) -> None:
    install(tmp_path, "go", says(text))
    with pytest.raises(kubernetes.CannotBuild) as caught:
        kubernetes.build(tmp_path)
    assert text in str(caught.value)


def test_a_build_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    module = tmp_path / "theirs.json"
    module.write_text('{"Go": "1.26", "Replace": []}')
    install(
        tmp_path,
        "go",
        f"""case "$2" in
            download) echo '{{"GoMod": "{module}"}}';;
            edit) cat "$4";;
            tidy) ;;
            *) exec sleep 600;;
        esac""",
    )
    with pytest.raises(Unavailable, match="go build took longer than 0 s"):
        kubernetes.build(tmp_path, limit=0.0)


def test_a_program_of_another_main_go_is_rebuilt_once(tmp_path: Path) -> None:
    module = tmp_path / "theirs.json"
    module.write_text('{"Go": "1.26", "Replace": []}')
    calls = install(
        tmp_path,
        "go",
        f"""case "$2" in
            download) echo '{{"GoMod": "{module}"}}';;
            edit) cat "$4";;
            tidy) ;;
            *) touch kube.new;;
        esac""",
    )
    built = kubernetes.build(tmp_path)
    assert set(built) == set(kubernetes.PARTS)
    once = calls.read_text()
    (built["kubectl"].parent / "main.go").write_text("package older")
    assert not kubernetes.is_built(tmp_path)
    kubernetes.build(tmp_path)
    assert calls.read_text() == once * 2
    kubernetes.build(tmp_path)
    assert calls.read_text() == once * 2


def test_without_go_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    fetched = install(tmp_path, "apt-get", "exit 1")
    with pytest.raises(SystemExit) as caught:
        binaries.main()
    assert caught.value.code == binaries.UNAVAILABLE
    assert "there is no Go to build it with; KUBELET can name a program to use" in capsys.readouterr().out
    assert not fetched.exists()


def test_an_unreachable_mirror_is_reported_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debian, "KEYRING", tmp_path)
    built = install(tmp_path, "go", "exit 1")
    install(
        tmp_path,
        "apt-get",
        'test "$1" = indextargets && exec echo http://mirror/debian; '
        + says("E: Failed to fetch http://mirror/debian/dists/sid/InRelease  Could not resolve mirror"),
    )
    with pytest.raises(SystemExit) as caught:
        binaries.main()
    assert caught.value.code == binaries.UNAVAILABLE
    assert "skipped, a program is not available here: apt-get update: " in capsys.readouterr().out
    assert not built.exists()


def test_nothing_is_fetched_on_a_machine_that_cannot_run_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "why_not", lambda: "there are no cgroups")
    fetched = install(tmp_path, "apt-get", "exit 1")
    with pytest.raises(SystemExit) as caught:
        binaries.main()
    assert caught.value.code == binaries.UNAVAILABLE
    assert capsys.readouterr().out == "e2e: skipped, this machine cannot run a node: there are no cgroups\n"
    assert not fetched.exists()


def test_a_variable_that_names_no_program_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBELET", str(tmp_path / "nothing"))
    with pytest.raises(SystemExit, match=r"KUBELET=.* is not a program"):
        binaries.main()


def test_an_unknown_release_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES", "newest")
    with pytest.raises(SystemExit, match="KUBERNETES=newest is not a release such as v1"):
        binaries.main()
