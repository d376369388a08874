"""Files that only root and this process's user can change are read; others are refused, with a fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncinotify
import pytest
from descriptors import open_descriptors
from kit.command import completed

from devhost.backend import trusted

STRANGER = 12345
"""A uid that is neither root's nor this process's."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """`place/inner/card.py`, which no other user can change."""
    directory = tmp_path / "place" / "inner"
    directory.mkdir(parents=True)
    for one in (directory, directory.parent):
        one.chmod(0o755)
    (directory / "card.py").write_text("sound")
    (directory / "card.py").chmod(0o644)
    return tmp_path / "place"


def why(path: Path) -> str:
    with pytest.raises(trusted.Untrusted) as refused:
        trusted.read_bytes(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def why_listed(path: Path) -> str:
    with pytest.raises(trusted.Untrusted) as refused:
        trusted.names(path)
    return str(refused.value)


def test_a_file_of_this_user_or_of_root_is_read(place: Path) -> None:
    assert trusted.read_bytes(place / "inner/card.py") == b"sound"
    assert trusted.names(place / "inner") == ["card.py"]
    assert b"root" in trusted.read_bytes("/etc/passwd")


@pytest.mark.parametrize(
    ("mode", "whom"), [(0o664, "its group"), (0o646, "others"), (0o666, "its group and others")]
)
def test_a_file_that_others_can_write_to_is_refused_until_its_mode_is_fixed(
    place: Path, mode: int, whom: str
) -> None:
    file = place / "inner/card.py"
    file.chmod(mode)
    assert why(file) == f"{file} is writable by {whom}, who can change it (run `chmod go-w {file}`)"
    file.chmod(mode & ~0o022)
    assert trusted.read_bytes(file) == b"sound"


@pytest.mark.parametrize("inner", ["inner", "."])
@pytest.mark.parametrize(("mode", "whom"), [(0o775, "its group"), (0o757, "others")])
def test_a_directory_on_the_way_that_others_can_write_to_is_refused(
    place: Path, inner: str, mode: int, whom: str
) -> None:
    at_fault = place / inner
    at_fault.chmod(mode)
    expected = f"{at_fault} is writable by {whom}, who can put files into it (run `chmod go-w {at_fault}`)"
    assert why(place / "inner/card.py") == expected
    assert why_listed(place / "inner") == expected


def test_a_sticky_directory_is_accepted_on_the_way_and_not_for_listing(place: Path) -> None:
    """In `/tmp` only the owner of an entry can replace it, and anybody can add one."""
    (place / "inner").chmod(0o1777)
    assert trusted.read_bytes(place / "inner/card.py") == b"sound"
    place.chmod(0o1777)
    assert "use a directory that only root can write to" in why_listed(place / "inner")
    (place / "inner").chmod(0o755)
    assert trusted.names(place / "inner") == ["card.py"]


def test_the_directory_of_a_link_counts_as_well_as_the_one_it_leads_to(place: Path) -> None:
    links = place / "links"
    links.mkdir(mode=0o755)
    (links / "card.py").symlink_to("../inner/card.py")
    assert trusted.read_bytes(links / "card.py") == b"sound"
    links.chmod(0o777)
    assert why(links / "card.py").startswith(f"{links} is writable")
    links.chmod(0o755)
    (place / "inner").chmod(0o777)
    assert why(links / "card.py").startswith(f"{place}/inner is writable")


def test_links_and_dots_are_resolved_as_the_kernel_does(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "far").mkdir(mode=0o755)
    (place / "far/there").symlink_to(place / "inner")
    (place / "beside.py").write_text("beside")
    assert trusted.read_bytes(f"{place}/far/there/../beside.py") == b"beside"
    assert trusted.read_bytes(f"{place}//far/./there/card.py") == b"sound"
    monkeypatch.chdir(place)
    assert trusted.read_bytes("inner/card.py") == b"sound"
    assert trusted.names(".") == os.listdir(place)
    (place / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        trusted.read_bytes(place / "loop")


def test_a_missing_file_or_another_kind_of_file_has_the_systems_error(place: Path) -> None:
    for wrong, error in (
        ("none/card.py", FileNotFoundError),
        ("inner/card.py/x", NotADirectoryError),
        ("inner", IsADirectoryError),
        ("inner/..", IsADirectoryError),
    ):
        with pytest.raises(error):
            trusted.read_bytes(place / wrong)
    with pytest.raises(NotADirectoryError):
        trusted.names(place / "inner/card.py")


def test_a_pipe_is_refused_and_waits_for_no_writer(place: Path) -> None:
    os.mkfifo(place / "pipe.py")
    assert why(place / "pipe.py") == f"{place}/pipe.py is not a regular file"


def test_a_file_of_another_kind_is_never_opened(place: Path) -> None:
    """Opening a pipe lets its writer continue, and opening a device may have any effect."""
    os.mkfifo(place / "pipe.py")
    with asyncinotify.Inotify(sync_timeout=0) as opens:
        opens.add_watch(place / "pipe.py", asyncinotify.Mask.OPEN)
        why(place / "pipe.py")
        assert opens.sync_get() is None


def test_a_path_outside_the_nodes_root_is_named_as_it_is() -> None:
    beside = trusted.Untrusted("/hosts/card.py", "is writable by others", "")
    assert beside.below("/host").path == "/hosts/card.py"
    assert beside.below("/hosts").path == "/card.py"


def test_no_descriptor_stays_open(place: Path) -> None:
    before = open_descriptors()
    trusted.read_bytes(place / "inner/card.py")
    with pytest.raises(FileNotFoundError):
        trusted.read_bytes(place / "none")
    place.chmod(0o777)
    why(place / "inner/card.py")
    assert open_descriptors() <= before


def test_the_text_names_paths_as_they_are_on_the_node() -> None:
    """In a container the host's directories are mounted below a prefix."""
    error = trusted.Untrusted(
        "/host/srv/my fpga", "is writable by others", "run `chmod go-w '/host/srv/my fpga'`"
    )
    assert str(error.below("/host")) == "/srv/my fpga is writable by others (run `chmod go-w '/srv/my fpga'`)"
    assert error.below("") is error
    assert error.below("/other") is error


@needs_root
def test_a_file_of_another_user_is_refused(place: Path) -> None:
    file = place / "inner/card.py"
    os.chown(file, STRANGER, -1)
    assert why(file) == f"{file} belongs to uid {STRANGER} and not to root (run `chown root {file}`)"


@needs_root
@pytest.mark.parametrize("inner", ["inner", "."])
def test_a_directory_of_another_user_on_the_way_is_refused(place: Path, inner: str) -> None:
    at_fault = place / inner
    os.chown(at_fault, STRANGER, -1)
    expected = f"{at_fault} belongs to uid {STRANGER} and not to root (run `chown root {at_fault}`)"
    assert why(place / "inner/card.py") == expected
    assert why_listed(place / "inner") == expected


@needs_root
def test_a_link_of_another_user_in_a_sticky_directory_is_refused(place: Path) -> None:
    place.chmod(0o1777)
    (place / "link.py").symlink_to("inner/card.py")
    assert trusted.read_bytes(place / "link.py") == b"sound"
    os.chown(place / "link.py", STRANGER, -1, follow_symlinks=False)
    assert why(place / "link.py").startswith(f"{place}/link.py belongs to uid {STRANGER}")


READ = (
    "import sys; from devhost.backend import trusted; "
    "print(trusted.names(sys.argv[1]), trusted.read_bytes(sys.argv[2]))"
)


@needs_root
def test_an_ordinary_user_trusts_root_and_itself_and_no_other_user() -> None:
    with TemporaryDirectory(dir="/tmp") as made:  # tmp_path is closed to other users
        place = Path(made)
        place.chmod(0o755)
        (place / "card.py").write_text("sound")
        os.seteuid(STRANGER)
        try:
            assert trusted.read_bytes(place / "card.py") == b"sound"
            os.seteuid(0)
            os.chown(place / "card.py", STRANGER, -1)
            os.seteuid(STRANGER)
            assert trusted.read_bytes(place / "card.py") == b"sound"
            os.seteuid(0)
            os.chown(place / "card.py", STRANGER + 1, -1)
            os.seteuid(STRANGER)
            assert why(place / "card.py") == (
                f"{place}/card.py belongs to uid {STRANGER + 1} and not to root or to uid {STRANGER}, "
                f"which devhost runs as (run `chown root {place}/card.py`)"
            )
        finally:
            os.seteuid(0)


def mounted(volume: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    """Reads a directory and the file `card.py` in it, in a mount namespace after some commands."""
    arguments = ["unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--mount"]
    script = "; ".join(["set -e", *commands, 'exec "$0" -c "$1" "$2" "$2/card.py"'])
    return completed(*arguments, "sh", "-c", script, sys.executable, READ, volume)


def needs_mounts() -> None:
    arguments = ["unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--mount", "true"]
    if subprocess.run(arguments, capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces cannot be made here")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A ConfigMap's volume as the kubelet makes it: links through `..data`, in a directory of mode 0777."""
    volume = tmp_path / "volume"
    data = volume / "..2026_01_01_00_00_00.123"
    data.mkdir(parents=True)
    (data / "card.py").write_text("sound")
    (volume / "..data").symlink_to(data.name)
    (volume / "card.py").symlink_to("..data/card.py")
    volume.chmod(0o777)
    return volume


def test_a_volume_of_kubernetes_is_read_where_it_is_mounted_read_only(volume: Path) -> None:
    needs_mounts()
    bind, seal = f"mount --bind {volume} {volume}", f"mount -o remount,bind,ro {volume}"
    assert "is writable by" in mounted(volume).stderr
    assert "is writable by" in mounted(volume, bind).stderr, "a container that could write to it"
    read = mounted(volume, bind, seal)
    assert "b'sound'" in read.stdout, read.stderr
    volume.chmod(0o1777)  # as on tmpfs, which Secret volumes are
    read = mounted(volume, bind, seal)
    assert "b'sound'" in read.stdout, read.stderr


def test_a_service_that_sees_everything_read_only_trusts_no_directory_for_that(volume: Path) -> None:
    """As with `ProtectSystem=strict` of systemd: others write to the directory all the same."""
    needs_mounts()
    above = volume.parent
    read = mounted(volume, f"mount --bind {above} {above}", f"mount -o remount,bind,ro {above}")
    assert f"{volume} is writable by its group and others" in read.stderr
