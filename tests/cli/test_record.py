"""``devhost record``: what it prints, and that ``discover`` shows the same for the tree and the machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.trees import Tree
from kit.command import DEVHOST, completed
from kit.drop_in import drop_in

DOCS = Path(__file__).resolve().parents[2] / "docs"

INSTALLED = {point.name for point in entry_points(group="devhost")}

DROP_IN = drop_in('''
class Lamp(Backend):
    """Reads in a way of its own: a file, a listing, a link, and what exists."""

    name = "lamp"
    attributes = {
        "colour": Attribute(str, "colour", "red"),
        "driver": Attribute(str, "driver", "bulb"),
        "parts": Attribute(list, "files beside it", ("colour",)),
        "dimmed": Attribute(bool, "whether it can be dimmed", True),
        "license": Attribute(bool, "whether there is a license", True),
    }

    def discover(self):
        for entry in (self.context.root / "sys/class/lamp").iterdir():
            node = self.context.root / "dev" / entry.name
            try:
                (entry / "key").read_text()
            except OSError:
                self.context.log.debug("no key")
            health = {} if node.exists() else {"health": unhealthy("no node")}
            yield Device(
                entry.resolve().parents[1].name,
                {
                    "colour": (entry / "colour").read_text().strip(),
                    "driver": os.path.basename(os.readlink(entry / "device/driver")),
                    "parts": tuple(sorted(set(os.listdir(entry)) - {"key"})),
                    "dimmed": (entry / "dim").exists(),
                    "license": os.path.exists(self.context.root / "opt/lamp/license"),
                },
                **health,
            )

    def allocate(self, request):
        return Edits(nodes=(DeviceNode("/dev/null"),))
''')

CONFIG = """\
version: 1
backendPaths: [backends]
resources:
- {name: example.com/lamp, backend: lamp, where: {dimmed: true}}
"""

TRIES = 5
"""Recordings of a machine on which something happens all the time; one is enough of a quiet one."""

HEEDING = """
import signal

for number in (signal.SIGTERM, signal.SIGHUP):  # nohup ignores some, and children inherit that
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
from devhost.cli import main
main()
"""

HANGING = drop_in("""
class Slow(Plain):
    name = "slow"

    def discover(self):
        Path({begun!r}).touch()
        time.sleep(60)
""")

STRANGE = """
class Strange(Lamp):
    name = "strange"

    def discover(self):
        (self.context.root / "sys/class/lamp").exists()
        raise OSError(5, "the lamp is dark")
"""


def devhost(*arguments: str | Path, code: int = 0) -> str:
    """What a command prints; it must end with ``code``."""
    done = completed(*DEVHOST, *arguments)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if code else done.stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two lamps, one without a node, a key that only root can read, and a disk."""
    tree = Tree(tmp_path / "machine")
    for number, slot in enumerate(("0000:3b:00.0", "0000:5e:00.0")):
        path = f"pci0000:00/{slot}"
        tree.pci(path, driver="bulb", numa_node=number)
        lamp = tree.device(f"{path}/lamp/lamp{number}", "lamp", files={"colour": "red", "key": "hunter2"})
        tree.link(f"{lamp}/device", f"/sys/devices/{path}")
        (tree.root / lamp.lstrip("/") / "key").chmod(0o400)
    tree.file(f"{lamp}/dim", "100")
    tree.file("/opt/lamp/license", "hunter2")
    tree.node("/dev/lamp0")
    tree.device("virtual/block/sda", "block", "sda", "8:0", {"size": "100", "serial": "S1"}, DEVTYPE="disk")
    tree.device("virtual/misc/fuse", "misc", "fuse", "10:229")
    tree.node("/dev/net/tun", "c10:200")
    tree.udev_record("b8:0", "E:ID_MODEL=Disk", "S:disk/by-id/disk-S1")
    tree.file("/proc/self/mountinfo", "22 1 8:0 / / rw - ext4 /dev/sda rw")
    return tree.root


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends/lamp.py").write_text(DROP_IN)
    (tmp_path / "node.yaml").write_text(CONFIG)
    return tmp_path / "node.yaml"


@pytest.fixture
def end(tmp_path: Path) -> Path:
    return tmp_path / "recorded tree"


def test_a_drop_in_backend_finds_the_same_in_the_tree(root: Path, config: Path, end: Path) -> None:
    said = devhost("record", end, "--config", config, "--root", root)
    for command in (("discover",), ("explain", "0000:5e:00.0"), ("explain", "red")):
        asked = (*command, "--config", config, "--output", "json", "--root")
        assert json.loads(devhost(*asked, end)) == json.loads(devhost(*asked, root))
    assert said.startswith(f"{end}: ")
    assert "2 devices of lamp" in said
    assert "find the same in this tree as on the machine" in said
    assert "serial numbers, MAC and IP addresses, and GUIDs" in said
    assert (end / "devhost.yaml").read_text() == CONFIG
    assert not any("hunter2" in file.read_text() for file in end.rglob("*") if file.is_file())


def test_every_installed_backend_finds_the_same_in_the_tree(root: Path, end: Path) -> None:
    devhost("record", end, "--root", root)
    machine, tree = (json.loads(devhost("discover", "--output", "json", "--root", r)) for r in (root, end))
    assert machine == tree
    assert {one["name"] for one in tree["backends"]} == INSTALLED


@pytest.mark.skipif("udev" not in INSTALLED, reason="the package devhost-udev is not installed")
def test_a_node_that_is_not_in_sysfs_is_a_device_of_the_tree(root: Path, end: Path) -> None:
    devhost("record", end, "--root", root)
    (found,) = json.loads(devhost("explain", "/dev/net/tun", "--root", end, "--output", "json"))
    assert (found["attributes"]["major"], found["attributes"]["minor"]) == (10, 200)
    (disk,) = json.loads(devhost("explain", "/dev/sda", "--root", end, "--output", "json"))
    assert (disk["attributes"]["system"], disk["attributes"]["ID_MODEL"]) == (True, "Disk")


def test_the_printed_commands_work(root: Path, config: Path, end: Path, tmp_path: Path) -> None:
    lines = devhost("record", end, "--root", root, "--config", config).splitlines()
    look, pack = (
        next(line.split(": ", 1)[1] for line in lines if line.startswith(f"  {w}: "))
        for w in ("look", "pack")
    )
    assert "example.com/lamp  0000:5e:00.0" in devhost(*shlex.split(look)[1:])
    if shutil.which("tar") is None:
        pytest.skip("there is no tar")
    subprocess.run(shlex.split(pack), cwd=tmp_path, check=True, timeout=240)
    (tmp_path / "elsewhere").mkdir()
    subprocess.run(
        ["tar", "xzf", "devhost-record.tgz", "-C", "elsewhere"], cwd=tmp_path, check=True, timeout=240
    )
    asked = ("discover", "--output", "json", "--root")
    assert devhost(*asked, tmp_path / "elsewhere" / end.name) == devhost(*asked, end)


def test_the_copied_configuration_works_with_drop_ins_next_to_it(root: Path, config: Path, end: Path) -> None:
    devhost("record", end, "--root", root, "--config", config)
    shutil.copytree(config.parent / "backends", end / "backends")
    said = devhost("discover", "--root", end, "--config", end / "devhost.yaml")
    assert said == devhost("discover", "--root", root, "--config", config)


def test_a_recorded_tree_can_be_the_machine_of_a_contract_test(tmp_path: Path) -> None:
    for page in ("backends/testing.md", "record.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        for name, code in re.findall(r"<!-- file: (\S+\.py) -->\n```python\n(.*?)```", text, re.DOTALL):
            (tmp_path / name).write_text(code)
    tree = Tree(tmp_path / "machine")
    for number, serial in enumerate(("A1", "B2")):
        path = f"virtual/mycard/mycard{number}"
        tree.device(path, "mycard", f"mycard{number}", f"240:{number}", {"serial": serial})
    (tmp_path / "backends").mkdir()
    shutil.copy(tmp_path / "mycard.py", tmp_path / "backends")
    (tmp_path / "node.yaml").write_text("version: 1\nbackendPaths: [backends]\nresources: []\n")
    devhost("record", tmp_path / "node7", "--root", tree.root, "--config", tmp_path / "node.yaml")
    with tarfile.open(tmp_path / "two-cards.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "node7", arcname=".")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    alone = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    env = alone | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # two promises stand for all: they need the devices, and the others damage the tree one file at a time
    chosen = ("test_recorded.py", "-k", "every_device_is_valid or allocated")
    ran = completed(sys.executable, "-m", "pytest", "-q", *chosen, cwd=tmp_path, env=env)
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_a_failing_backend_does_not_prevent_recording_the_others(root: Path, config: Path, end: Path) -> None:
    (config.parent / "backends/lamp.py").write_text(DROP_IN + STRANGE)
    config.write_text(f"{CONFIG}- {{name: example.com/strange, backend: strange}}\n")
    said = devhost("record", end, "--config", config, "--root", root)
    assert "backend strange is degraded: backend strange failed: the lamp is dark" in said
    assert "2 devices of lamp, strange" in said
    assert "find the same" in said


def test_an_unusable_directory_is_one_line_and_exit_code_2(root: Path, end: Path) -> None:
    end.mkdir()
    (end / "file").touch()
    assert devhost("record", end, "--root", root, code=2) == (
        f"devhost: {end} is not empty (give the name of a new directory)\n"
    )
    said = devhost("record", end / "no/such", "--root", root, code=2)
    assert said == f"devhost: {end / 'no'} is not a directory (create it first)\n"
    assert devhost("record", "/proc/x", "--root", root, code=3).count("\n") == 1
    assert os.listdir(end) == ["file"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(
    root: Path, tmp_path: Path, end: Path, number: signal.Signals
) -> None:
    """Also while a backend hangs."""
    begun = tmp_path / "begun"
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends/slow.py").write_text(HANGING.format(begun=str(begun)))
    config = tmp_path / "node.yaml"
    config.write_text(
        "version: 1\nbackendPaths: [backends]\nresources: [{name: example.com/slow, backend: slow}]\n"
    )
    before = sorted([*os.listdir(tmp_path), "begun"])
    command = [sys.executable, "-c", HEEDING, "record", end, "--config", config, "--root", root]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 120
        while not begun.exists() and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        running.send_signal(number)
        _, said = running.communicate(timeout=240)
    assert running.returncode == 128 + number
    assert "Traceback" not in said
    assert sorted(set(os.listdir(tmp_path)) | {"begun"}) == before


def test_a_wrong_configuration_makes_no_tree(root: Path, config: Path, end: Path) -> None:
    config.write_text("version: 1\nresorces: []\n")
    assert "resorces" in devhost("record", end, "--config", config, "--root", root, code=2)
    assert not end.exists()


def test_terminal_control_characters_in_a_name_are_escaped(root: Path, config: Path, tmp_path: Path) -> None:
    said = devhost("record", tmp_path / "a\x1b[31m b", "--config", config, "--root", root)
    assert "\x1b" not in said
    assert "a\\x1b[31m b" in said


def _devices(*arguments: str | Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = json.loads(devhost("discover", "--output", "json", *arguments))["unmatched"]
    return {(one["backend"], one["id"]): one for one in found}


@pytest.mark.skipif(not Path("/sys/class").is_dir(), reason="there is no /sys here")
@pytest.mark.skipif(Path("/etc/devhost/devhost.yaml").exists(), reason="this machine has a configuration")
def test_a_tree_of_this_machine_shows_what_this_machine_shows(end: Path) -> None:
    """Devices may come and go meanwhile: those that stay are the same, and none is invented."""
    made_up: list[set[tuple[str, str]]] = []
    while len(made_up) < TRIES:
        before = _devices()
        devhost("record", end)
        after = _devices()
        tree = _devices("--root", end)
        stable = [key for key, device in before.items() if after.get(key) == device]
        assert {key: tree.get(key) for key in stable} == {key: before[key] for key in stable}
        assert before.keys() & after.keys() <= tree.keys()
        made_up.append(tree.keys() - before.keys() - after.keys())
        if not made_up[-1]:
            return
        shutil.rmtree(end)  # some device came and went in between, or else it is made up each time
    assert not set.intersection(*made_up)
