"""The copy of the last accepted configuration: whose it is, where it is, and that it is always whole."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from kit.files import limited
from kit.waiting import background

from devhost.backend.errors import ConfigError
from devhost.config.last_good import Accepted, LastGood, Unusable
from devhost.config.loader import load, load_or_copy
from devhost.config.root_directory import state_directory

FIRST, SECOND = b"version: 1\nresources: []\n", b"version: 1\nresources: [] # the second\n"


def keep(config: Path, directory: Path, data: bytes) -> LastGood:
    kept = LastGood(config, directory)
    asyncio.run(_keep(kept, data))
    return kept


async def _keep(kept: LastGood, data: bytes) -> None:
    await written(kept, data)
    kept.close()


async def written(kept: LastGood, data: bytes) -> None:
    """Keeps it, again and again where the disk is very slow."""
    async with asyncio.timeout(60):
        while True:
            await kept.keep(Accepted(data, 0o644))
            if (found := kept.read()) and found.data == data and not kept.outdated:
                return


def test_each_path_has_a_separate_copy_in_one_directory(tmp_path):
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    keep(one, tmp_path / "state", FIRST)
    keep(other, tmp_path / "state", SECOND)
    assert LastGood(one, tmp_path / "state").read().data == FIRST
    assert LastGood(other, tmp_path / "state").read().data == SECOND
    assert LastGood(tmp_path / "third.yaml", tmp_path / "state").read() is None


def test_the_copy_of_another_path_is_not_used_under_any_name(tmp_path):
    kept = keep(tmp_path / "one.yaml", tmp_path / "state", FIRST)
    other = LastGood(tmp_path / "other.yaml", tmp_path / "state")
    kept.file.rename(other.file)
    with pytest.raises(Unusable, match=f"it is a copy of {tmp_path}/one.yaml"):
        other.read()


def test_a_link_in_place_of_the_copy_is_not_followed(tmp_path):
    kept = keep(tmp_path / "one.yaml", tmp_path / "state", FIRST)
    kept.file.rename(tmp_path / "elsewhere")
    kept.file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unusable, match="cannot be read: Too many levels of symbolic links"):
        LastGood(tmp_path / "one.yaml", tmp_path / "state").read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_a_copy_that_another_user_wrote_is_not_used(tmp_path):
    kept = keep(tmp_path / "one.yaml", tmp_path / "state", FIRST)
    os.chown(kept.file, 4711, 4711)
    with pytest.raises(Unusable, match="it belongs to uid 4711"):
        LastGood(tmp_path / "one.yaml", tmp_path / "state").read()


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_copy_that_another_user_can_change_is_not_used(tmp_path, mode):
    kept = keep(tmp_path / "one.yaml", tmp_path / "state", FIRST)
    kept.file.chmod(mode)
    with pytest.raises(Unusable, match="other users can change it"):
        LastGood(tmp_path / "one.yaml", tmp_path / "state").read()


def test_what_comes_from_an_open_file_or_a_pipe_has_no_copy(tmp_path):
    """``--config <(generate)`` has the path ``/dev/fd/63`` whatever is generated."""
    assert LastGood(Path("/dev/fd/63"), tmp_path).file is LastGood(Path("/dev/stdin"), tmp_path).file is None
    assert LastGood(Path("/dev/shm/devhost.yaml"), tmp_path).file is not None
    assert LastGood(Path("/proc/self/fd/0"), tmp_path).read() is None
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["sh", "-c", f"printf 'version: 1\\nresources: []\\n' > {pipe}"])
    assert load(pipe).accepted is None
    assert writer.wait(60) == 0


async def test_a_full_disk_keeps_the_old_copy_and_is_a_problem_until_it_has_space(tmp_path):
    kept = LastGood(tmp_path / "one.yaml", tmp_path / "state")
    await written(kept, FIRST)
    big = SECOND + b"#" * 100_000
    with limited(resource.RLIMIT_FSIZE, 50_000):
        await kept.keep(Accepted(big, 0o644))
    assert kept.outdated.startswith(
        f"{kept.file} is the copy of an earlier configuration:"
        f" cannot keep a copy of the configuration in {kept.file.parent}: File too large"
    )
    assert kept.read().data == FIRST
    assert list(kept.file.parent.iterdir()) == [kept.file]
    await written(kept, big)
    kept.close()


async def test_a_copy_that_is_removed_meanwhile_is_written_again(tmp_path):
    kept = LastGood(tmp_path / "one.yaml", tmp_path / "state", again=0.05)
    await written(kept, FIRST)
    kept.file.unlink()
    kept.file.parent.rmdir()
    async with asyncio.timeout(60), background(kept.run(lambda: None)):
        while not (found := kept.read()):
            await asyncio.sleep(0.02)
    assert found.data == FIRST


WRITER = """
import asyncio, sys
from pathlib import Path
from devhost.config.last_good import Accepted, LastGood

async def main():
    kept = LastGood(Path(sys.argv[1]), Path(sys.argv[2]))
    while True:
        for letter in b"ab":
            await kept.keep(Accepted(bytes([letter]) * 300_000, 0o644))
            print(letter, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("writes", [1, 2, 5, 9])
def test_a_process_killed_while_it_writes_leaves_the_old_copy_or_the_new_one(tmp_path, writes):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "one.yaml"), str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        for _ in range(writes):
            process.stdout.readline()
        process.kill()  # it writes the next one just now
    found = LastGood(tmp_path / "one.yaml", tmp_path / "state").read()
    assert found.data in (b"a" * 300_000, b"b" * 300_000)


def test_what_a_killed_process_left_half_written_is_removed_in_time(tmp_path):
    kept = keep(tmp_path / "one.yaml", tmp_path / "state", FIRST)
    left = kept.file.with_name(f".{kept.file.stem}-abc.part")
    fresh = left.with_name(f".{kept.file.stem}-def.part")
    left.touch()
    fresh.touch()  # another process may be writing it
    os.utime(left, (1, 1))
    keep(tmp_path / "one.yaml", tmp_path / "state", SECOND)
    assert sorted(kept.file.parent.iterdir()) == [fresh, kept.file]


def test_complaints_about_a_copy_have_the_lines_of_the_copy(tmp_path):
    config = tmp_path / "one.yaml"
    kept = keep(config, tmp_path / "state", b"version: 1\nresources: 7\nbackends: 8\n")
    with pytest.raises(ConfigError) as caught:
        load_or_copy(config, kept)
    missing, neither = caught.value.diagnostics
    assert str(missing).startswith(f"{config}: there is no such file (check the path, or create it")
    line = kept.file.read_text().splitlines().index("resources: 7") + 1
    assert str(neither).startswith(
        f"{kept.file}:{line}:12: resources: this copy of the configuration accepted at 2"
    )
    assert "and 1 more error" in str(neither)


def test_a_copy_can_be_checked_like_any_file(tmp_path):
    kept = keep(tmp_path / "one.yaml", tmp_path / "state", FIRST)
    assert load(kept.file).settings == load_or_copy(tmp_path / "one.yaml", kept).settings


def test_root_keeps_copies_on_the_node_and_a_user_at_home(monkeypatch, tmp_path):
    monkeypatch.delenv("DEVHOST_STATE_DIR")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state_directory(Path("/")) == Path("/var/lib/devhost")
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_directory(Path("/")) == tmp_path / ".local" / "state" / "devhost"
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    assert state_directory(Path("/")) == tmp_path / ".local" / "state" / "devhost"
    monkeypatch.setenv("XDG_STATE_HOME", "/srv/state")
    assert state_directory(Path("/")) == Path("/srv/state/devhost")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_294_967_000)  # in no list of users, as in some containers
    assert state_directory(Path("/")) is None
    monkeypatch.setenv("DEVHOST_STATE_DIR", "/srv/copies")
    assert state_directory(Path("/")) == Path("/srv/copies")
