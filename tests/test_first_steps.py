"""The commands that README and tutorial give to a new user do what the text promises, on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from addresses import free_address
from kit.command import completed
from kit.files import replace
from kit.http import get

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")

PATIENCE = 240.0


def commands(page: str) -> list[str]:
    """The lines of a page's shell blocks that call devhost."""
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```$", page)
    return [line for block in blocks for line in block.splitlines() if line.startswith("devhost ")]


class Desk:
    """The terminals of a reader, all in one directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._open: list[subprocess.Popen[str]] = []
        self._said = place / "kubelet.log"

    def _words(self, command: str) -> list[str]:
        here = re.sub(r"/tmp/[a-z-]+(?=/device-plugins)", str(self.place / "k"), command)
        return [sys.executable, "-m", *here.split()]

    def start(self, command: str) -> subprocess.Popen[str]:
        """Types a command into a terminal of its own, where it stays."""
        with self._said.open("a") as out:
            process = subprocess.Popen(
                self._words(command),
                cwd=self.place,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        self._open.append(process)
        return process

    def run(self, command: str) -> str:
        """Types a command and waits for its end."""
        done = completed(*self._words(command), cwd=self.place)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        """The document of the running devhost; of nothing as long as none answers."""
        done = completed(*self._words("devhost status --output json"), cwd=self.place)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"resources": []}
        return found

    def registered(self, times: int = 1) -> set[str]:
        """The resources that are registered, if so often that many times."""
        found = self.status()["resources"]
        return {
            one["name"] for one in found if one["state"] == "registered" and one["registrations"] >= times
        }

    def until(self, holds: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, f"{what}: {self._said.read_text()}"
            time.sleep(0.1)

    def type(self, kubelet: subprocess.Popen[str], line: str, until: str) -> None:
        """Types a line into the kubelet's terminal and waits for what it prints then."""
        begin = len(self._said.read_text())
        assert kubelet.stdin is not None
        kubelet.stdin.write(f"{line}\n")
        kubelet.stdin.flush()
        self.until(lambda: until in self._said.read_text()[begin:], until)

    def close(self) -> None:
        for process in self._open:
            process.kill()
            process.communicate(timeout=240)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "run"))
    shutil.copytree(ROOT / "config", tmp_path / "config")
    with closing(Desk(tmp_path)) as desk:
        yield desk


def test_readme(desk: Desk) -> None:
    """Discover, serve, admit a pod, restart the kubelet, edit the file, and look at the page."""
    kubelet_command, run_command, page_command = commands(README)
    shown = desk.run("devhost discover --config config/devhost.yaml").splitlines()
    offered = {line.split()[0] for line in shown if re.match(r"devhost\.dev/[^ :]+ ", line)}
    offered.discard("devhost.dev/zram")  # other tests plug these devices
    if not offered:
        pytest.skip("this machine has no device of the default configuration")
    kubelet = desk.start(kubelet_command)
    desk.until(lambda: (desk.place / "k/device-plugins/kubelet.sock").exists(), "a kubelet")
    host = desk.start(run_command)
    desk.until(lambda: desk.registered() >= offered, "every resource that discover shows is registered")

    wanted = "devhost.dev/fuse" if "devhost.dev/fuse" in offered else min(offered)
    desk.type(kubelet, f"allocate 1 of {wanted}", "device      /dev/")
    desk.until(lambda: "default/pod-1/main" in desk.run("devhost status"), "the pod in the status")
    table = desk.run("devhost discover --config config/devhost.yaml")
    assert "default/pod-1/main" in table
    desk.type(kubelet, "restart", "started ")
    desk.until(lambda: desk.registered(2) >= offered, "every resource is back")

    file = desk.place / "config" / "devhost.yaml"
    replace(file, file.read_text().replace("name: devhost.dev/", "name: edited.dev/"))
    renamed = {name.replace("devhost.dev/", "edited.dev/") for name in offered - {wanted}}
    desk.until(lambda: renamed <= desk.registered(), "the edited file")

    host.terminate()
    assert host.wait(120) == 0
    address = free_address()
    assert ":9400" in page_command and "http://localhost:9400" in README
    desk.start(page_command.replace(":9400", address))

    desk.until(lambda: "<html" in get(address, "/")[1], "the page")


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")  # noqa: PTH110
def test_tutorial(desk: Desk) -> None:
    """Its two commands, with its file, offer the device; step 6 shares it, and three pods get it."""
    files = dict(re.findall(r"(?ms)^<!-- file: (\S+) -->\n```yaml\n(.*?)^```$", TUTORIAL))
    file = desk.place / "devhost.yaml"
    file.write_text(files["devhost.yaml"])
    kubelet_command, run_command = commands(TUTORIAL)
    kubelet = desk.start(kubelet_command)
    desk.until(lambda: (desk.place / "k/device-plugins/kubelet.sock").exists(), "a kubelet")
    desk.start(run_command)
    desk.until(lambda: desk.registered() == {"example.com/fuse"}, "the resource")
    desk.type(kubelet, "allocate 1 of example.com/fuse", "device      /dev/fuse (rw)")
    desk.type(kubelet, "allocate 1 of example.com/fuse", "admission-failed")
    desk.until(lambda: "default/pod-1/main" in desk.run("devhost status"), "the holder")
    desk.type(kubelet, "release pod-1", "pod-released")
    desk.until(lambda: "default/pod-1/main" not in desk.run("devhost status"), "HELD BY is empty")
    replace(file, files["shared.yaml"])
    desk.until(lambda: [one["capacity"] for one in desk.status()["resources"]] == [3], "three shares")
    for _ in range(3):
        desk.type(kubelet, "allocate 1 of example.com/fuse", "device      /dev/fuse (rw)")


def test_the_tutorial_has_the_number_that_its_file_gives_a_node() -> None:
    """On the cluster the reader has the file of step 6, and edits it once more."""
    files = dict(re.findall(r"(?ms)^<!-- file: (\S+) -->\n```yaml\n(.*?)^```$", TUTORIAL))
    (replicas,) = re.findall(r"share: \{replicas: (\d+)\}", files["shared.yaml"])
    assert f"shows a {replicas}." in TUTORIAL
    (edited,) = re.findall(r"Write `replicas: (\d+)` into `devhost.yaml`", TUTORIAL)
    assert edited != replicas
    assert f"The node shows a {edited} " in TUTORIAL


def test_every_file_that_the_tutorial_applies_was_written_before() -> None:
    for used in re.findall(r"(?:apply -f|config=|--config) ?(\S+\.yaml)", TUTORIAL):
        written = re.search(rf"Write this into `{re.escape(used)}`", TUTORIAL)
        assert written, used
        assert written.start() < TUTORIAL.index(used, written.end())


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=["README", "tutorial"])
def test_every_terminal_of_a_page_sets_its_path(page: str) -> None:
    first = page.index("devhost kubelet --dir /tmp")
    assert "`export` line" in page[page.index("export PATH") : first]
