"""What a recorded tree contains, what it omits, and that backends find the same in it as on the machine."""

# backends look in every way there is, and so do these tests:
# ruff: noqa: PTH110, PTH115, PTH117, PTH120, PTH123, PTH207

from __future__ import annotations

import errno
import glob
import json
import os
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from os import lstat as own_lstat
from pathlib import Path
from typing import ClassVar

import pytest
from devhost_testing.trees import Tree
from kit.backend import Plain

from devhost.backend import Attribute, Backend, Device, Health
from devhost.backend.sysfs import is_live, node_number
from devhost.cli.recording.capture import MAX_FILE, Bounds
from devhost.cli.recording.recorder import CONFIGURATION, MANIFEST, Recording, record
from devhost.config.loader import Loaded
from devhost.discovery.catalog import Catalog, Installed
from devhost.planning.settings import Settings

Find = Callable[[Path], object]


def backend(find: Find, name: str = "asker", deadline: float = 30) -> type[Backend]:
    """A backend with one device, whose attribute ``found`` is the result of ``find`` for the root."""

    class Asker(Plain):
        attributes: ClassVar = {"found": Attribute(str, "what was found", "[]")}
        discover_deadline = deadline

        def discover(self) -> Iterable[Device]:
            text = json.dumps(find(self.context.root), sort_keys=True)
            return [Device("it", {"found": text})]

    Asker.name = name
    return Asker


def loaded(*backends: type[Backend]) -> Loaded:
    """No resources, and these backends."""
    installed = {one.name: Installed(one, "a test", "1.0", ()) for one in backends}
    return Loaded(Settings(backends=dict.fromkeys(installed)), Catalog(installed))


def found(made: Recording, name: str = "asker") -> object:
    """What the backend found on the machine."""
    return json.loads(str(made.machine.scanners[name].devices["it"].attributes["found"]))


def why(made: Recording) -> dict[str, str]:
    """The omitted paths, with the reasons."""
    return {one.path: one.reason for one in made.omissions}


def everything_in(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with one network card behind a bridge, a node that is not in sysfs, and secrets."""
    tree = Tree(tmp_path / "machine")
    tree.pci("pci0000:3a/0000:3a:00.0", driver="pcieport")
    slot = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    tree.pci(slot, driver="mycard", numa_node=1, iommu_group=17)
    tree.device(f"{slot}/mycard/card!0", "mycard", "my/card0", "240:0", {"serial": "A1", "queue/size": "8"})
    tree.link("/dev/by-id/card-A1", "/dev/my/card0")
    tree.node("/dev/fuse", "c10:229")
    tree.udev_record("c240:0", "E:ID_MODEL=X100")
    for path in ("/proc/self/environ", "/proc/1/environ", "/proc/cmdline", "/etc/secret", "/dev/shm/secret"):
        tree.file(path, "TOKEN=hunter2")
    tree.file("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw")
    return tmp_path / "machine"


@pytest.fixture
def end(tmp_path: Path) -> Path:
    return tmp_path / "recorded"


CARD = "sys/class/mycard/card!0"


def by_open(root: Path) -> object:
    with open(f"{root}/{CARD}/queue/size") as file:
        return file.read(1)


def by_descriptor(root: Path) -> object:
    descriptor = os.open(bytes(root / CARD / "serial"), os.O_RDONLY)
    try:
        return os.read(descriptor, 9).decode()
    finally:
        os.close(descriptor)


def by_directory_descriptor(root: Path) -> object:
    directory = os.open(root / CARD, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.fdopen(os.open("serial", os.O_RDONLY, dir_fd=directory)) as file:
            serial = file.read()
        return [serial, sorted(os.listdir(directory)), os.readlink("subsystem", dir_fd=directory)]
    finally:
        os.close(directory)


WAYS: dict[str, Find] = {
    "read_text": lambda root: (root / CARD / "serial").read_text(),
    "open": by_open,
    "os.open": by_descriptor,
    "bytes": lambda root: os.listdir(bytes(root / CARD / "queue"))[0].decode(),
    "dir_fd": by_directory_descriptor,
    "listdir": lambda root: sorted(os.listdir(root / CARD)),
    "iterdir": lambda root: sorted(path.name for path in (root / CARD / "device").iterdir()),
    "scandir": lambda root: sorted(
        (e.name, e.is_dir(), e.is_symlink()) for e in os.scandir(root / "sys/bus/pci")
    ),
    "linked": lambda root: sorted((e.name, e.is_dir()) for e in os.scandir(root / "sys/bus/pci/devices")),
    "walk": lambda root: sorted(map(sorted, (w[2] for w in os.walk(root / CARD)))),
    "glob": lambda root: sorted(path[len(str(root)) :] for path in glob.glob(f"{root}/sys/class/*/*/ser*")),
    "Path.glob": lambda root: sorted(str(path.relative_to(root)) for path in root.glob("sys/class/*/*/dev")),
    "Path.rglob": lambda root: sorted(path.name for path in (root / "dev").rglob("*card*")),
    "exists": lambda root: [os.path.exists(root / p) for p in ("dev/my/card0", "dev/my/card1", "dev/fuse")],
    "Path.exists": lambda root: [(root / CARD / p).exists() for p in ("queue", "rotational", "uevent")],
    "is": lambda root: [(root / CARD).is_dir(), (root / CARD).is_symlink(), (root / CARD / "dev").is_file()],
    "access": lambda root: [os.access(root / p, os.F_OK) for p in ("opt/lib.so", "etc/secret")],
    "own lstat": lambda root: [stat.S_ISDIR(own_lstat(root / CARD / p).st_mode) for p in ("queue", "dev")],
    "readlink": lambda root: [os.readlink(root / CARD), os.readlink(root / "dev/by-id/card-A1")],
    "resolve": lambda root: str((root / CARD / "subsystem").resolve().relative_to(root.resolve())),
    "realpath": lambda root: os.path.realpath(root / CARD / "../..")[len(os.path.realpath(root)) :],
    "up": lambda root: (root / CARD / ".." / ".." / "numa_node").read_text(),
    "node": lambda root: node_number(f"{root}/dev/fuse"),
    "udev": lambda root: (root / "run/udev/data/c240:0").read_text(),
    "proc": lambda root: [(root / "proc/self/mountinfo").read_text(), (root / "proc/swaps").exists()],
}


@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_file_access_gives_the_same_result_in_the_tree(root: Path, end: Path, way: str) -> None:
    made = record(loaded(backend(WAYS[way])), end, root)
    assert made.differences == ()
    assert WAYS[way](end) == WAYS[way](root)
    assert made.machine.scanners["asker"].condition.reason == ""


def test_only_accessed_paths_and_their_parents_are_recorded(root: Path, end: Path) -> None:
    record(loaded(backend(lambda root: (root / CARD / "queue/size").read_text())), end, root)
    card = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/mycard/card!0"
    files = {str(path.relative_to(end)) for path in end.rglob("*") if path.is_file()}
    assert files == {f"{card}/queue/size", MANIFEST}


def test_the_links_of_a_device_are_recorded_even_if_not_accessed(root: Path, end: Path) -> None:
    record(loaded(backend(lambda root: (root / CARD / "device/numa_node").read_text())), end, root)
    card = end / "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    assert (card / "driver").resolve() == end / "sys/bus/pci/drivers/mycard"
    assert (card / "iommu_group").is_dir()


def test_links_are_relative_and_stay_inside_the_tree(root: Path, end: Path) -> None:
    (root / "dev/log").symlink_to("/run/log")
    (root / "dev/null0").symlink_to("/dev/fuse")
    (root / "sys/up").symlink_to("../../../../../../dev/fuse")
    (root / "dev/loop").symlink_to("loop")
    made = record(
        loaded(backend(lambda root: [sorted(os.listdir(root / d)) for d in ("dev", "sys")])), end, root
    )
    links = [path for path in end.rglob("*") if path.is_symlink()]
    assert {"log", "null0", "up", "loop"} <= {path.name for path in links}
    for link in links:
        assert not os.path.isabs(os.readlink(link))
        assert os.path.normpath(link.parent / os.readlink(link)).startswith(f"{end}/")
    assert (end / "sys/up").resolve() == (end / "dev/null0").resolve() == end / "dev/fuse"
    assert made.differences == ()


ODD = ("a b", "a'b\"c", "a\nb", "a\\x2fb", "\x1b[31m", "ünï", os.fsdecode(b"\xff\xfe"), "-rf", "*")


def test_unusual_names_are_recorded_unchanged(root: Path, end: Path) -> None:
    for name in ODD:
        (root / "sys/class/mycard" / name).write_text(name, encoding="utf-8", errors="surrogateescape")

    def find(root: Path) -> object:
        files = sorted(path for path in (root / "sys/class/mycard").iterdir() if path.is_file())
        return [(path.name, path.read_bytes().hex()) for path in files]

    made = record(loaded(backend(find)), end, root)
    assert made.differences == ()
    assert sorted(os.listdir(end / "sys/class/mycard")) == sorted((*ODD, "card!0"))
    json.loads((end / MANIFEST).read_text(encoding="ascii"))


SECRETS = {
    "/proc/self/environ": "it is not about hardware",
    "/proc/1/environ": "it is not about hardware",
    "/proc/cmdline": "it is not about hardware",
    "/dev/shm/secret": "it is not about hardware",
    "/etc/secret": "its content is not about hardware",
    "/sys/class/mycard/key": "not every user may read it",
    "/sys/closed/key": "not every user may enter it",
}


def test_secrets_are_not_recorded_even_as_root(root: Path, end: Path) -> None:
    (root / "sys/closed").mkdir(mode=0o700)
    for path in ("sys/closed/key", "sys/class/mycard/key"):
        (root / path).write_text("TOKEN=hunter2")
    (root / "sys/class/mycard/key").chmod(0o400)

    def find(root: Path) -> object:
        sorted(os.listdir(root / "sys/class/mycard"))
        for path in SECRETS:
            try:
                (root / path.lstrip("/")).read_text()
            except OSError:
                continue
        return os.path.exists(root / "etc/secret")

    made = record(loaded(backend(find)), end, root)
    assert b"hunter2" not in everything_in(end)
    reasons = why(made)
    for path, reason in SECRETS.items():
        assert reason in (reasons.get(path), reasons.get(f"{os.path.dirname(path)}/")), path
    assert {one.backend for one in made.omissions} == {"asker"}
    assert not (end / "sys/class/mycard/key").exists()
    assert found(made) is True
    assert made.differences == ()


def test_of_the_network_only_routes_and_addresses_are_recorded(root: Path, end: Path) -> None:
    for name in ("route", "ipv6_route", "if_inet6", "tcp"):
        (root / "proc/1/net").mkdir(parents=True, exist_ok=True)
        (root / f"proc/1/net/{name}").write_text("eth0\n")

    def find(root: Path) -> object:
        return [(root / f"proc/1/net/{name}").read_text() for name in ("route", "ipv6_route", "if_inet6")]

    made = record(loaded(backend(find)), end, root)
    assert made.differences == ()
    record(loaded(backend(lambda root: len((root / "proc/1/net/tcp").read_text()))), end / "two", root)
    assert not (end / "two/proc/1/net/tcp").exists()


def test_addresses_of_kernel_modules_are_not_recorded(root: Path, end: Path) -> None:
    line = "ib_core 557056 11 rdma_cm,ib_ipoib, Live 0xffffffffc0a4e000\n"
    (root / "proc/modules").write_text(line)
    record(loaded(backend(lambda root: len((root / "proc/modules").read_text()))), end, root)
    assert (end / "proc/modules").read_text() == line.replace("ffffffffc0a4e000", "0" * 16)


def test_directories_of_programs_are_not_listed(root: Path, end: Path) -> None:
    made = record(loaded(backend(lambda root: len(os.listdir(root / "proc")))), end, root)
    assert why(made) == {"/proc/": "its names are not about hardware"}
    assert made.differences == ("asker: it: found is 3, in the tree 0",)


def test_files_outside_the_root_are_named_but_not_copied(root: Path, end: Path, tmp_path: Path) -> None:
    (tmp_path / "beside").write_text("hunter2")
    made = record(loaded(backend(lambda root: (tmp_path / "beside").read_text())), end, root)
    assert why(made) == {str(tmp_path / "beside"): f"it is not below {root}"}
    assert b"hunter2" not in everything_in(end)


def test_a_file_that_cannot_be_read_is_an_error_in_the_tree_as_well(root: Path, end: Path) -> None:
    (root / "sys/class/mycard/speed").symlink_to("speed")

    def find(root: Path) -> object:
        try:
            return [
                sorted(os.listdir(root / "sys/class/mycard")),
                (root / "sys/class/mycard/speed").read_text(),
            ]
        except OSError:
            return "refused"

    made = record(loaded(backend(find)), end, root)
    assert (found(made), made.differences) == ("refused", ())


def test_a_long_file_is_cut_at_the_end_of_a_line(root: Path, end: Path) -> None:
    (root / "proc/swaps").write_text("0123456789\n" * 10_000)
    made = record(loaded(backend(lambda root: len((root / "proc/swaps").read_text()[:20]))), end, root)
    text = (end / "proc/swaps").read_text()
    assert text.endswith("9\n")
    assert MAX_FILE - 11 < len(text) <= MAX_FILE
    assert "only its beginning" in why(made)["/proc/swaps"]


@pytest.mark.parametrize(
    ("bounds", "says"),
    [(Bounds(entries=40), "40 files, links and directories"), (Bounds(bytes=1 << 20), "1 MiB")],
)
def test_a_tree_stops_at_its_size_limit_and_reports_it(
    root: Path, end: Path, bounds: Bounds, says: str
) -> None:
    for number in range(100):
        (root / f"sys/class/mycard/big{number:02}").write_bytes(b"x" * 60_000)

    def find(root: Path) -> object:
        return sum(len((root / f"sys/class/mycard/big{n:02}").read_text()[:1]) for n in range(100))

    made = record(loaded(backend(find)), end, root, bounds=bounds)
    assert says in made.full
    assert len(list(end.rglob("*"))) <= 42
    most = min(bounds.entries * 60_000, bounds.bytes)
    assert 0 < sum(path.stat().st_size for path in end.rglob("big*")) <= most
    assert json.loads((end / MANIFEST).read_text())["incomplete"] == made.full
    assert made.differences


def test_a_failing_backend_is_recorded_in_part_and_the_others_in_full(root: Path, end: Path) -> None:
    def fail(root: Path) -> object:
        (root / CARD / "serial").read_text()
        raise OSError(errno.EIO, "the card does not answer")

    good = backend(lambda root: (root / CARD / "queue/size").read_text(), "good")
    made = record(loaded(backend(fail, "bad"), good), end, root)
    assert made.differences == ()
    assert (end / CARD / "serial").read_text() == "A1\n"
    assert (end / CARD / "queue/size").read_text() == "8\n"
    states = {one["name"]: one for one in json.loads((end / MANIFEST).read_text())["backends"]}
    assert states["good"]["state"] == "ok"
    assert states["bad"]["state"] == "degraded"
    assert "the card does not answer" in states["bad"]["reason"]


def test_a_file_at_which_a_backend_hung_is_not_read_again(root: Path, end: Path) -> None:
    release = threading.Event()

    def hang(root: Path) -> object:
        (root / CARD / "serial").read_text()
        with open(root / CARD / "uevent"):
            release.wait(120)
        return "late"

    try:
        made = record(loaded(backend(hang, "slow", deadline=2.0)), end, root)
    finally:
        release.set()
    assert (end / CARD / "serial").read_text() == "A1\n"
    assert not (end / CARD / "uevent").exists()
    assert why(made) == {f"/{CARD}/uevent": "backend slow hung at it"}
    assert "did not answer within" in made.machine.scanners["slow"].condition.reason


def test_the_reads_of_a_probe_are_recorded_except_for_the_file_at_which_it_hung(
    root: Path, end: Path
) -> None:
    release = threading.Event()

    class Prober(backend(lambda here: "x", "slow", deadline=2.0)):  # type: ignore[misc]
        def probe(self, devices: Sequence[Device]) -> dict[str, Health]:
            here = self.context.root
            (here / CARD / "serial").read_text()
            if here == root:
                with open(here / CARD / "uevent"):
                    release.wait(120)
            return {}

    try:
        made = record(loaded(Prober), end, root)
    finally:
        release.set()
    assert (end / CARD / "serial").read_text() == "A1\n"
    assert not (end / CARD / "uevent").exists()
    assert why(made) == {f"/{CARD}/uevent": "backend slow hung at it"}


def test_files_read_only_in_the_tree_are_copied_during_verification(root: Path, end: Path) -> None:
    def find(here: Path) -> object:
        if here == root:
            return "8\n"  # as a vendor's library would say
        listed = sorted(os.listdir(here / "sys/class/mycard")) if (here / "sys/class/mycard").is_dir() else []
        return (here / "sys/class/mycard" / listed[0] / "queue/size").read_text() if listed else ""

    made = record(loaded(backend(find)), end, root)
    assert made.differences == ()
    assert (end / CARD / "queue/size").read_text() == "8\n"


def test_differences_that_files_cannot_reproduce_are_listed(root: Path, end: Path) -> None:
    made = record(loaded(backend(lambda here: "library" if here == root else "files")), end, root)
    assert made.differences == ('asker: it: found is "library", in the tree "files"',)
    assert json.loads((end / MANIFEST).read_text())["differences"] == list(made.differences)


def test_a_recording_of_a_recording_is_the_same(root: Path, end: Path, tmp_path: Path) -> None:
    def find(root: Path) -> object:
        return [[sorted(names), sorted(files)] for _, names, files in sorted(os.walk(root / "dev/my"))]

    configuration = loaded(backend(find))
    first = record(configuration, end, root)
    second = record(configuration, tmp_path / "again", end)
    assert found(first) == found(second) == [[[], ["card0"]]]
    again = {path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("*")}
    assert again == {path.relative_to(end) for path in end.rglob("*")}


def test_a_node_keeps_its_number_in_a_recording_of_a_recording(root: Path, end: Path, tmp_path: Path) -> None:
    configuration = loaded(backend(lambda root: sorted(os.listdir(root / "dev"))))
    first = record(configuration, end, root)
    second = record(configuration, tmp_path / "again", end)
    assert first.nodes == second.nodes == {"/dev/fuse": "c10:229"}
    assert (tmp_path / "again/dev/fuse").read_text() == "c10:229\n"


def test_the_description_names_the_source_of_the_tree(root: Path, end: Path, tmp_path: Path) -> None:
    (root / "etc/os-release").write_text('# a comment\nID=debian\nVERSION_ID="12"\nBROKEN="\n')
    (tmp_path / "node.yaml").write_text("version: 1\nresources: []\n")
    made = record(loaded(backend(lambda root: 1)), end, root, tmp_path / "node.yaml")
    said = json.loads((end / MANIFEST).read_text())
    assert (said["format"], said["root"], said["configuration"]) == (
        1,
        str(root),
        str(tmp_path / "node.yaml"),
    )
    assert (said["system"]["distribution"], said["system"]["version"]) == ("debian", "12")
    assert (said["system"]["kernel"], said["system"]["architecture"]) == (
        os.uname().release,
        os.uname().machine,
    )
    (one,) = said["backends"]
    assert (one["name"], one["origin"], one["version"], one["devices"]) == ("asker", "a test", "1.0", 1)
    assert os.uname().nodename not in {said["system"][key] for key in said["system"]}
    assert (end / CONFIGURATION).read_text() == "version: 1\nresources: []\n"
    assert made.directory == end


def test_an_empty_machine_makes_an_empty_tree(tmp_path: Path, end: Path) -> None:
    (tmp_path / "empty").mkdir()
    made = record(loaded(backend(lambda root: (root / "sys").exists())), end, tmp_path / "empty")
    assert (made.files, made.links, made.bytes, made.omissions, made.differences) == (0, 0, 0, (), ())
    assert os.listdir(end) == [MANIFEST]


def test_no_backend_makes_a_tree_with_only_a_description(root: Path, end: Path) -> None:
    assert record(loaded(), end, root).machine.devices() == []


def test_the_mounts_that_devhost_reads_itself_are_not_listed_as_omitted(root: Path, end: Path) -> None:
    """Every recording reads them to find out whether a root is that of a machine."""
    made = record(loaded(backend(is_live)), end, root)
    assert why(made) == {}


def test_files_read_from_this_machine_despite_root_are_named(root: Path, end: Path, tmp_path: Path) -> None:
    def find(at: Path) -> str:
        return "" if at == root else (tmp_path / "beside").read_text()

    (tmp_path / "beside").write_text("hunter2")
    made = record(loaded(backend(find)), end, root)
    assert why(made) == {
        str(tmp_path / "beside"): "it is read from this machine even with --root",
    }
