"""The tool that makes the image reads archives, keeps secrets, and names what is missing in one line."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import pytest
from image import access, machine
from image.archive import Archive
from image.contents import table
from kit.command import completed
from running import Failed, Unavailable, run

ROOT = Path(__file__).resolve().parents[2]


def layer(*files: tuple[str, bytes | None]) -> bytes:
    """A compressed layer of files, links (``a -> b``) and, with ``None``, directories."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files:
            path, _, target = name.partition(" -> ")
            info = tarfile.TarInfo(path)
            info.size = len(content or b"")
            info.type = (
                tarfile.SYMTYPE if target else tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
            )
            info.linkname = target
            tar.addfile(info, io.BytesIO(content or b""))
    return buffer.getvalue()


def archive(path: Path, *layers: bytes) -> Archive:
    """An OCI archive of these layers."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes) -> dict[str, object]:
        digest = sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    config = blob(json.dumps({"config": {"Env": ["PATH=/bin"]}}).encode())
    manifest = blob(json.dumps({"config": config, "layers": [blob(one) for one in layers]}).encode())
    manifest["annotations"] = {"org.opencontainers.image.ref.name": "one:1"}
    blobs["index.json"] = json.dumps({"manifests": [manifest]}).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in blobs.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return Archive(path)


def test_an_upper_layer_replaces_removes_and_hides_what_is_below(tmp_path: Path) -> None:
    image = archive(
        tmp_path / "image.tar",
        layer(("./", None), ("./a", b"old"), ("./d/b", b"1"), ("./d/c", b"1"), ("./e/f", b"1"), (".h", b"1")),
        layer(("a", b"new"), ("d/.wh.b", b""), ("e/.wh..wh..opq", b""), ("e/g", b"2")),
    )
    assert image.names == ["one:1"]
    assert {name: entry.layer for name, entry in image.files.items()} == {
        "a": 1,
        "d/c": 0,
        ".h": 0,
        "e/g": 1,
    }
    assert dict(image.contents(lambda name: name in ("a", "e/g", "e/f"))) == {"a": b"new", "e/g": b"2"}


def test_links_are_followed_inside_the_image(tmp_path: Path) -> None:
    image = archive(
        tmp_path / "image.tar",
        layer(("bin -> usr/bin", b""), ("usr/bin/x -> ../lib/y", b""), ("usr/lib/y", b"1"), ("r -> /r", b"")),
    )
    assert image.resolve("/bin/x") == "usr/lib/y"
    assert image.resolve("nothing/here") == "nothing/here"
    with pytest.raises(ValueError, match="circle"):
        image.resolve("/r")


def test_sizes_are_reported_by_layer_and_package(tmp_path: Path) -> None:
    lists = b"/.\n/lib\n/lib/x.so\n"
    image = archive(
        tmp_path / "image.tar",
        layer(("usr/lib/x.so", b"x" * 3_000_000), ("var/lib/dpkg/info/libx:amd64.list", lists)),
        layer(("opt/devhost/lib/python3.13/site-packages/grpc/x.so", b"y" * 2_000_000)),
    )
    text = "\n".join(table(image))
    assert "5.0 MB unpacked" in text
    assert "3.0 MB libx" in text
    assert "2.0 MB grpc" in text


def test_what_a_builder_needs_is_written_where_only_it_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = tmp_path / "ca.pem"
    certificates.write_text("certificates")
    monkeypatch.setenv("PIP_CERT", str(certificates))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/somewhere/here")
    monkeypatch.setenv("DEBIAN_MIRROR", "http://mirror.example/debian/")
    arguments = access.secrets(tmp_path / "secrets")
    assert "secret@" not in " ".join(arguments)
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    written = {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}
    assert written["ca.crt"] == "certificates"
    assert "index-url = https://user:secret@index.example/simple\n" in written["pip.conf"]
    assert "cert = /run/ca.crt\n" in written["pip.conf"]
    assert "somewhere" not in written["pip.conf"]
    assert "URIs: http://mirror.example/debian\n" in written["debian.sources"]
    assert "URIs: http://mirror.example/debian-security\n" in written["debian.sources"]
    assert set(arguments) == {f"--secret=id={name},src={tmp_path / 'secrets' / name}" for name in written}


def test_debians_own_mirror_needs_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBIAN_MIRROR", access.MIRROR)
    access.secrets(tmp_path / "secrets")
    assert not (tmp_path / "secrets" / "debian.sources").exists()


def test_a_mirror_of_another_shape_is_taken_as_it_is() -> None:
    assert access.sources("http://mirror.example/trixie-main").count("URIs:") == 1


def test_a_network_that_does_not_answer_is_no_failure() -> None:
    def saying(text: str) -> Iterable[str]:
        return "sh", "-c", f'echo "{text}" >&2; exit 3'

    with pytest.raises(Unavailable, match=r"^sh: E: Could not resolve 'x'$"):
        run([*saying("E: Could not resolve 'x'")], limit=60)
    with pytest.raises(Failed, match=r"(?s)exit code 3.*no such package"):
        run([*saying("E: no such package")], limit=60)
    with pytest.raises(Failed, match="did not finish within 0 s"):
        run(["sleep", "60"], limit=0.1)


def test_the_missing_packages_are_named_in_one_line(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "tools")}
    done = completed(sys.executable, "-m", "image", env=environment)
    assert done.returncode == 77
    (line,) = done.stdout.splitlines()
    assert "apt-get install buildah util-linux mount mmdebstrap" in line
    assert list(tmp_path.iterdir()) == []


def test_a_named_base_takes_fewer_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable) as told:
        machine.require(own_base=False)
    assert "mmdebstrap" not in str(told.value)


def test_without_root_it_reports_that_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr(machine, "PROGRAMS", {})
    with pytest.raises(Unavailable, match="only root"):
        machine.require(own_base=False)


TERMINATED = """\
import os, signal
from running import leave_on_sigterm

leave_on_sigterm()
try:
    os.kill(os.getpid(), signal.SIGTERM)
finally:
    os.kill(os.getpid(), signal.SIGTERM)
    print("cleaned")
"""


def test_a_second_sigterm_does_not_interrupt_what_the_first_one_started() -> None:
    tools = {"PYTHONPATH": str(ROOT / "tools")}
    done = completed(sys.executable, "-c", TERMINATED, env=os.environ | tools)
    assert (done.returncode, done.stdout) == (143, "cleaned\n")
