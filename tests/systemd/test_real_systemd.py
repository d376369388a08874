"""The shipped unit in its sandbox, with a real systemd, real devices and a kubelet."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from booted import UNIT, Machine, Unbootable, booted, why_not
from devhost_testing.kubelet import KubeletSimulator
from devhost_testing.zram import Busy, Zram
from devhost_testing.zram import why_not as why_no_zram

EXAMPLES = UNIT.parent / "devhost.service.d.examples"

NULL = "example.com/null"
ZRAM = "example.com/zram"
CONFIG = f"""version: 1
resources:
  - {{name: {NULL}, backend: udev, where: {{devNode: /dev/null}}}}
  - {{name: {ZRAM}, backend: udev, whenEmpty: register, where: {{subsystem: block, sysName: "zram*"}}}}
"""

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory = tmp_path_factory.mktemp("m")
    try:
        with booted(directory) as machine:
            machine.config.with_name("devhost.env").write_text("DEVHOST_OPTIONS=--listen=127.0.0.1:0\n")
            yield machine
    except Unbootable as error:
        pytest.skip(f"systemd cannot run here: {error}")


@pytest.fixture
def stopped(machine: Machine) -> Iterator[Machine]:
    """The machine with a valid configuration; devhost is stopped before and after the test."""
    machine.config.write_text(CONFIG)
    yield machine
    machine.systemctl("stop", "devhost")


@pytest.fixture
async def kubelet(stopped: Machine) -> AsyncIterator[KubeletSimulator]:
    shutil.rmtree(stopped.kubelet_dir, ignore_errors=True)  # it would remember the pods of the test before
    async with KubeletSimulator(stopped.kubelet_dir) as kubelet:
        yield kubelet


async def until(look, what: str) -> None:
    deadline = time.monotonic() + 90
    while not look():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


async def served(kubelet: KubeletSimulator) -> None:
    await kubelet.wait_for(lambda: kubelet.allocatable().get(NULL) == 1)


def mounts(process: int) -> dict[str, str]:
    """Every mount point of a process, with its options."""
    lines = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
    return {line.split()[4]: line.split()[5].split(",")[0] for line in lines}


async def test_the_start_waits_for_the_first_plan_but_not_for_a_kubelet(stopped):
    stopped.systemctl("start", "devhost")
    shown = stopped.shown()
    assert (shown["ActiveState"], shown["SubState"]) == ("active", "running")
    await until(lambda: "kubelet.sock is absent" in stopped.shown()["StatusText"], "the status line")
    assert stopped.shown()["StatusText"].startswith("2 resources, 1 problem; first: ")


async def test_in_its_sandbox_it_serves_a_pod(stopped, kubelet):
    stopped.systemctl("start", "devhost")
    await served(kubelet)
    await kubelet.admit("pod", "main", NULL, 1)
    await until(lambda: stopped.shown()["StatusText"] == "2 resources, no problems", "all is well")


@pytest.mark.skipif(bool(why_no_zram()), reason=why_no_zram())
async def test_in_its_sandbox_it_notices_devices_that_come_and_go(stopped, kubelet):
    try:
        with Zram() as zram:
            stopped.systemctl("start", "devhost")
            await served(kubelet)
            number = zram.plug()
            await kubelet.wait_for(lambda: f"block-zram{number}" in kubelet.healthy(ZRAM))
            zram.unplug(number)
            await kubelet.wait_for(lambda: f"block-zram{number}" not in kubelet.healthy(ZRAM))
    except Busy as error:
        pytest.skip(str(error))


async def test_it_has_no_capability_and_can_write_only_where_necessary(stopped, kubelet):
    stopped.systemctl("start", "devhost")
    await served(kubelet)
    process = stopped.pid()
    status = Path(f"/proc/{process}/status").read_text()
    for kind in ("Prm", "Eff", "Bnd", "Amb"):
        assert re.search(rf"^Cap{kind}:\s+0+$", status, re.MULTILINE), kind
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
    found = mounts(process)
    assert found["/"] == "ro"
    assert found["/sys"] == "ro"
    assert found["/var/lib/kubelet/device-plugins"] == "rw"
    assert found["/run/devhost"] == "rw"
    assert found["/var/lib/devhost"] == "rw"
    assert found["/run/k8s.cni.cncf.io/devinfo/dp"] == "rw"


async def test_in_its_sandbox_every_backend_scans_without_an_error(stopped, kubelet):
    backends = ("fpga", "gpu", "neuron", "rdma", "sriov")
    entries = "".join(f"  - {{name: example.com/{name}, backend: {name}}}\n" for name in backends)
    stopped.config.write_text(CONFIG + entries)
    stopped.systemctl("start", "devhost")
    await served(kubelet)

    def states() -> dict[str, str]:
        asked = ("/opt/devhost/bin/devhost", "status", "--output", "json")
        told = stopped.run("env", "LD_LIBRARY_PATH=/opt/python/lib", *asked).stdout
        return {backend["name"]: backend["state"] for backend in json.loads(told)["backends"]}

    await until(lambda: "starting" not in states().values(), "every backend has looked")
    assert states() == dict.fromkeys((*backends, "udev"), "ok"), stopped.lines()


async def test_a_reload_takes_effect_and_a_wrong_configuration_is_refused_with_its_place(stopped, kubelet):
    stopped.systemctl("start", "devhost")
    await served(kubelet)
    stopped.config.write_text(CONFIG.replace(NULL, "example.com/other"))
    stopped.systemctl("reload", "devhost")
    await kubelet.wait_for(lambda: kubelet.allocatable().get("example.com/other") == 1)
    stopped.config.write_text(CONFIG.replace("udev", "udevv"))
    done = stopped.run("systemctl", "reload", "devhost")
    assert done.returncode != 0
    assert "devhost.yaml:3" in stopped.lines()
    assert stopped.shown()["ActiveState"] == "active"
    assert kubelet.allocatable()["example.com/other"] == 1


async def test_the_run_and_the_reload_use_another_configuration(stopped, kubelet):
    variables = stopped.config.with_name("devhost.env")
    before = variables.read_text()
    other = stopped.config.with_name("other.yaml")
    other.write_text(CONFIG.replace(NULL, "example.com/other"))
    variables.write_text(f"{before}DEVHOST_CONFIG=/etc/devhost/other.yaml\n")
    try:
        stopped.systemctl("start", "devhost")
        await kubelet.wait_for(lambda: kubelet.allocatable().get("example.com/other") == 1)
        stopped.config.write_text("no configuration\n")
        stopped.systemctl("reload", "devhost")
        other.write_text(CONFIG.replace("udev", "udevv"))
        assert stopped.run("systemctl", "reload", "devhost").returncode != 0
        assert "other.yaml:3" in stopped.lines()
    finally:
        stopped.systemctl("stop", "devhost")
        variables.write_text(before)
        other.unlink()


async def test_it_restarts_after_a_crash_and_not_after_a_stop(stopped, kubelet):
    stopped.systemctl("start", "devhost")
    await served(kubelet)
    os.kill(stopped.pid(), signal.SIGKILL)
    await kubelet.wait_for(lambda: kubelet.allocatable()[NULL] == 0)
    await served(kubelet)
    stopped.systemctl("stop", "devhost")
    shown = stopped.shown()
    assert (shown["ActiveState"], shown["Result"], shown["ExecMainStatus"]) == ("inactive", "success", "0")
    assert [path.name for path in stopped.kubelet_dir.glob("*.sock")] == ["kubelet.sock"]


async def test_a_hung_process_is_killed_and_restarted(stopped, kubelet):
    stopped.drop_in("impatient", "[Service]\nWatchdogSec=3\n")
    try:
        stopped.systemctl("start", "devhost")
        await served(kubelet)
        hung = stopped.pid()
        os.kill(hung, signal.SIGSTOP)
        await until(lambda: int(stopped.shown()["NRestarts"]) > 0, "it is started again")
        await served(kubelet)
        assert stopped.pid() != hung
    finally:
        stopped.drop_in("impatient", None)


async def test_an_invalid_configuration_at_a_restart_keeps_the_last_accepted_one(stopped, kubelet):
    stopped.systemctl("start", "devhost")
    await served(kubelet)
    stopped.config.write_text("version: 1\nresources: [{name: no, backend: udevv}]\n")
    stopped.systemctl("restart", "devhost")
    await served(kubelet)
    await until(lambda: "devhost.yaml:2:" in stopped.shown()["StatusText"], "the refused file")
    assert stopped.shown()["ActiveState"] == "active"


async def test_an_invalid_configuration_at_the_first_start_is_retried_until_it_is_fixed(stopped, kubelet):
    stopped.run("rm", "-rf", "/var/lib/devhost")  # no configuration was ever accepted
    stopped.config.write_text("version: 1\nresources: [{name: no, backend: udevv}]\n")
    assert stopped.run("systemctl", "start", "devhost").returncode != 0
    stopped.config.write_text(CONFIG)
    await served(kubelet)


async def capabilities(
    stopped: Machine, kubelet: KubeletSimulator, example: str
) -> tuple[str, dict[str, str]]:
    """The capabilities and the mounts of the process with this example."""
    stopped.drop_in("example", (EXAMPLES / example).read_text())
    try:
        stopped.systemctl("start", "devhost")
        await served(kubelet)
        process = stopped.pid()
        status = Path(f"/proc/{process}/status").read_text()
        bounding, effective = (
            re.search(rf"^{key}:\s+(\w+)$", status, re.MULTILINE) for key in ("CapBnd", "CapEff")
        )
        assert bounding and effective
        assert bounding[1] == effective[1]
        return bounding[1].lstrip("0"), mounts(process)
    finally:
        stopped.systemctl("stop", "devhost")
        stopped.drop_in("example", None)


async def test_the_example_for_virtual_functions_opens_sysfs_but_not_sysctl(stopped, kubelet):
    """Functions are created by writing to files of root, which needs no capability."""
    found, places = await capabilities(stopped, kubelet, "sriov.conf")
    assert places["/sys"] == "rw"
    assert (places["/sys/kernel"], places["/proc/sys"]) == ("ro", "ro")
    assert found == ""


async def test_the_example_for_partitions_opens_sysfs_and_adds_one_capability(stopped, kubelet):
    found, places = await capabilities(stopped, kubelet, "partitions.conf")
    assert (places["/sys"], places["/sys/kernel"], places["/proc/sys"]) == ("rw", "ro", "ro")
    assert found == "200000"  # CAP_SYS_ADMIN


async def test_the_example_for_switch_modes_adds_one_capability_and_no_file(stopped, kubelet):
    found, places = await capabilities(stopped, kubelet, "eswitch.conf")
    assert found == "1000"  # CAP_NET_ADMIN
    assert places["/sys"] == "ro"
