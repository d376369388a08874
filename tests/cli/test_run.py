"""``devhost run`` as a process: exit codes, signals, the status socket, HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from addresses import free_address
from devhost_testing.kubelet import KubeletSimulator, events
from kit import process as process_of
from kit.command import DEVHOST, completed
from kit.http import get
from kit.waiting import until

from devhost.config.loader import DEFAULT
from devhost.config.root_directory import is_this_machine
from devhost.kubelet.kubelet_socket import ABSENT


def running(toys, kubelet_dir, *arguments):
    return toys.running(kubelet_dir, *arguments, log=subprocess.PIPE, runtime=toys.root / "run")


async def ended(process) -> int:
    return await asyncio.to_thread(process.wait, 120)


async def logged(process, wanted: str) -> None:
    """Waits for a line with these words after those that were read before."""
    while wanted not in await asyncio.to_thread(process.stderr.readline):
        assert process.poll() is None


async def until_served(kubelet, count=2):
    await kubelet.wait_for(lambda: kubelet.allocatable().get("example.com/toy") == count)


@asynccontextmanager
async def served(toys, tmp_path):
    """A kubelet, and a process whose devices it has."""
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        with running(toys, kubelet.directory) as process:
            await until_served(kubelet)
            yield kubelet, process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_signal_unlinks_the_sockets_and_exits_with_0(toys, tmp_path, number):
    async with served(toys, tmp_path) as (kubelet, process):
        process.send_signal(number)
        assert await ended(process) == 0
        assert [path.name for path in kubelet.directory.glob("*.sock")] == ["kubelet.sock"]
        await kubelet.wait_for(lambda: kubelet.allocatable()["example.com/toy"] == 0)
        assert kubelet.capacity()["example.com/toy"] == 2


async def test_after_a_kill_the_next_start_removes_the_stale_socket_and_serves(toys, tmp_path):
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        with running(toys, kubelet.directory) as process:
            await until_served(kubelet)
            process.kill()
            await ended(process)
        await kubelet.wait_for(lambda: kubelet.allocatable()["example.com/toy"] == 0)
        stale = set(kubelet.directory.glob("dh-*.sock"))
        assert stale
        with running(toys, kubelet.directory):
            await until_served(kubelet)
            assert not stale & set(kubelet.directory.glob("dh-*.sock"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_the_older_instance_registers_again_when_the_newer_one_ends(toys, tmp_path, number):
    async with KubeletSimulator(tmp_path / "kubelet", "1.36") as kubelet:
        with running(toys, kubelet.directory) as older:
            await until_served(kubelet)
            with running(toys, kubelet.directory) as newer:
                await kubelet.wait_for(lambda: len(kubelet.endpoints("example.com/toy")) == 2)
                await logged(older, "another devhost registered it after this one")
                before = kubelet.events.position
                newer.send_signal(number)
                await ended(newer)
                await kubelet.wait_for(lambda: kubelet.events.of(events.Disconnected, since=before))
                await kubelet.wait_for(lambda: kubelet.events.of(events.Registered, since=before))
                await until_served(kubelet)


@pytest.mark.parametrize(("there", "told"), [((), 1), (("sys",), 0), (("dev",), 0)])
async def test_a_root_without_files_of_a_host_is_logged(toys, tmp_path, there, told):
    for name in there:
        (toys.root / name).mkdir()
    async with served(toys, tmp_path) as (_kubelet, process):
        process.terminate()
        _, said = await asyncio.to_thread(process.communicate, timeout=240)
    line = f"the host's directories are not below --root reason=\"{toys.root} has neither sys nor dev ("
    assert said.count(line) == told


WHEN_EXEMPT = """
    import gc
    imported = gc.get_freeze_count()

    async def watch(self):
        import asyncio
        from devhost.backend import Event
        while True:
            await asyncio.sleep(0.2)
            yield Event()

    def discover(self):
        if self.gc.get_freeze_count() <= self.imported:
            return
"""


async def test_what_exists_after_the_start_is_exempt_from_garbage_collection(toys, tmp_path):
    drop_in = toys.config.parent / "backends" / "toy.py"
    drop_in.write_text(drop_in.read_text().replace("\n    def discover(self):\n", WHEN_EXEMPT))
    async with served(toys, tmp_path) as (_kubelet, _):
        pass


async def test_a_hung_backend_does_not_keep_the_process_running(toys, tmp_path):
    drop_in = toys.config.parent / "backends" / "toy.py"
    hang = "    def discover(self):\n        import threading; threading.Event().wait()\n"
    drop_in.write_text(drop_in.read_text().replace("    def discover(self):\n", hang))
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        with running(toys, kubelet.directory, "--status-socket", str(tmp_path / "status")) as process:
            await until((tmp_path / "status").exists)
            process.terminate()
            assert await ended(process) == 0


async def test_sighup_applies_an_edit_at_once(toys, tmp_path):
    async with served(toys, tmp_path) as (kubelet, process):
        toys.plug("one=x100", "two=x200", "three=x100")
        process.send_signal(signal.SIGHUP)
        await until_served(kubelet, 3)


async def test_a_drop_in_writable_by_others_is_refused_at_a_reload_until_its_mode_is_fixed(
    toys, tmp_path, monkeypatch
):
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(toys.root / "run"))
    drop_in = toys.config.parent / "backends" / "toy.py"
    fix = f"run `chmod go-w {drop_in}`"

    async def problems() -> str:
        return (await asyncio.to_thread(completed, *DEVHOST, "status")).stdout

    async with served(toys, tmp_path) as (kubelet, process):
        drop_in.chmod(0o664)
        process.send_signal(signal.SIGHUP)
        await logged(process, fix)
        assert fix in await problems()
        assert kubelet.allocatable()["example.com/toy"] == 2, "what is served goes on"
        drop_in.chmod(0o644)
        process.send_signal(signal.SIGHUP)
        await logged(process, "configuration loaded")
        assert fix not in await problems()


async def test_status_asks_the_running_host(toys, tmp_path, monkeypatch):
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(toys.root / "run"))
    async with served(toys, tmp_path) as (kubelet, _):
        state = "registering"
        async with asyncio.timeout(60):
            while state == "registering":  # the list may come before the answer to Register
                done = await asyncio.to_thread(completed, *DEVHOST, "status", "--output", "json")
                document = json.loads(done.stdout)
                (resource,) = document["resources"]
                state = resource["state"]
        assert (state, resource["streams"], resource["allocatable"]) == ("registered", 1, 2)
        about = document["kubelet"]
        assert (about["dir"], about["socket"]) == (str(kubelet.directory), "present")
        assert about["podResources"]["socket"] == str(tmp_path / "pod-resources" / "kubelet.sock")


async def test_the_podresources_socket_can_be_elsewhere_and_status_names_the_pod(toys, tmp_path, monkeypatch):
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(toys.root / "run"))
    (toys.root / "dev").mkdir(exist_ok=True)
    (toys.root / "dev" / "null").touch()
    async with KubeletSimulator(tmp_path / "kubelet", pod_resources=tmp_path / "moved") as kubelet:
        with running(toys, kubelet.directory, "--pod-resources", str(kubelet.pod_resources)):
            await until_served(kubelet)
            await kubelet.admit("meter", "main", "example.com/toy", 1)
            async with asyncio.timeout(60):
                shown = ""
                while "default/meter/main" not in shown:
                    shown = (await asyncio.to_thread(completed, *DEVHOST, "status")).stdout


@pytest.fixture
def address():
    return free_address()


async def test_readyz_is_true_only_with_a_live_stream_for_every_resource(toys, tmp_path, address):
    directory = tmp_path / "kubelet"
    directory.mkdir()
    with running(toys, directory, "--listen", address):
        async with asyncio.timeout(60):
            while (answer := await asyncio.to_thread(get, address, "/readyz"))[1].find("waiting") < 0:
                await asyncio.sleep(0.05)
        assert answer == (503, f"no list stream yet: example.com/toy (waiting: {ABSENT})\n")
        async with KubeletSimulator(directory) as kubelet:
            await until_served(kubelet)
            # the list may come before the answer to Register
            await until(lambda: asyncio.to_thread(lambda: get(address, "/readyz")[0] == 200))
            assert (await asyncio.to_thread(get, address, "/healthz"))[0] == 200
            metrics = (await asyncio.to_thread(get, address, "/metrics"))[1]
            assert 'devhost_registrations_total{resource="example.com/toy"} 1.0' in metrics


async def test_metrics_name_pods_only_if_requested(toys, tmp_path, address):
    def held() -> list[str]:
        lines = get(address, "/metrics")[1].splitlines()
        return [line for line in lines if line.startswith("devhost_device_held{")]

    (toys.root / "dev").mkdir(exist_ok=True)
    (toys.root / "dev" / "null").touch()
    sockets = tmp_path / "pod-resources"
    async with KubeletSimulator(tmp_path / "kubelet", pod_resources=sockets) as kubelet:
        for asked, arguments in ((False, ()), (True, ("--pod-metrics",))):
            with running(toys, kubelet.directory, "--listen", address, *arguments) as process:
                await until_served(kubelet)
                if not asked:
                    await kubelet.admit("train", "main", "example.com/toy", 1)
                    assert await asyncio.to_thread(held) == []
                else:
                    (line,) = await until(lambda: asyncio.to_thread(held))
                    for label in ('resource="example.com/toy"', 'pod="train"', 'container="main"'):
                        assert label in line
                process.terminate()
                await ended(process)
            await kubelet.wait_for(lambda: kubelet.allocatable()["example.com/toy"] == 0)


async def test_metrics_show_the_use_of_devices_only_if_requested(toys, tmp_path, address):
    def used() -> list[str]:
        lines = get(address, "/metrics")[1].splitlines()
        return sorted(
            line for line in lines if line.startswith(("devhost_device_use", "devhost_device_memory"))
        )

    toy = toys.config.parent / "backends" / "toy.py"
    usage = 'def usage(self, devices):\n        return {"one": Usage(0.5, 1024, 2048)}\n\n    def allocate'
    measured = toy.read_text().replace("def allocate", usage).replace("unhealthy\n", "unhealthy, Usage\n", 1)
    toy.write_text(measured)
    labels = '{device="one",resource="example.com/toy"}'
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        for arguments, wanted in (
            ((), []),
            (
                ("--use-metrics",),
                [
                    f"devhost_device_memory_bytes{labels} 2048.0",
                    f"devhost_device_memory_used_bytes{labels} 1024.0",
                    f"devhost_device_use_ratio{labels} 0.5",
                ],
            ),
        ):
            with running(toys, kubelet.directory, "--listen", address, *arguments) as process:
                await until_served(kubelet)
                if wanted:  # a scrape does not wait for long, and has the answer later
                    await until(lambda: asyncio.to_thread(used))
                assert await asyncio.to_thread(used) == wanted
                process.terminate()
                await ended(process)
            await kubelet.wait_for(lambda: kubelet.allocatable()["example.com/toy"] == 0)


async def test_a_status_socket_and_a_use_of_devices_that_fail_are_problems(toys, tmp_path, address):
    def problems() -> set[str]:
        lines = get(address, "/metrics")[1].splitlines()
        return {line for line in lines if line.startswith("devhost_problem_info")}

    toy = toys.config.parent / "backends" / "toy.py"
    usage = 'def usage(self, devices):\n        raise OSError("no")\n\n    def allocate'
    toy.write_text(toy.read_text().replace("def allocate", usage))
    (tmp_path / "file").touch()
    options = ("--listen", address, "--use-metrics", "--status-socket", str(tmp_path / "file" / "socket"))
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        with running(toys, kubelet.directory, *options) as process:
            await until_served(kubelet)
            async with asyncio.timeout(60):
                while len(found := sorted(await asyncio.to_thread(problems))) < 2:
                    await asyncio.sleep(0.05)
            assert 'kind="task"' in found[1] and 'subject="status socket"' in found[1]
            assert 'kind="backend"' in found[0] and "the use of devices is not known: " in found[0]
            process.terminate()
            await ended(process)


@pytest.mark.parametrize("option", ["--pod-metrics", "--use-metrics"])
def test_further_metrics_without_an_http_server_are_refused(toys, option):
    done = completed(*DEVHOST, "run", "--config", toys.config, option)
    assert done.returncode == 2
    assert f"{option} has no metrics to add to" in done.stderr


def test_an_invalid_configuration_exits_with_2_and_every_error(toys):
    toys.config.write_text("version: 1\nresources:\n  - {name: a/b/c, backend: nope}\n")
    done = toys.devhost("run")
    assert done.returncode == 2
    assert [line.split(":")[1:3] for line in done.stderr.splitlines()] == [["3", "12"], ["3", "28"]]


@pytest.mark.parametrize("command", [["run"], ["discover"], ["explain", "one"]])
def test_every_command_has_a_hint_for_a_missing_or_unsuitable_file(toys, command):
    toys.config.write_text("apiVersion: v1\nkind: ConfigMap\ndata: {devhost.yaml: ''}\n")
    done = toys.devhost(*command)
    keep = 'keep only the text of its key "devhost.yaml", without the indentation'
    said = f"{toys.config}:2:1: this is a Kubernetes ConfigMap, not a configuration of devhost ({keep})\n"
    assert (done.returncode, done.stderr) == (2, said)
    toys.config.unlink()
    done = toys.devhost(*command)
    create = "create it with at least `version: 1` and `resources: []`"
    said = f"{toys.config}: there is no such file (check the path, or {create})\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_missing_default_configuration_is_one_line_with_the_option(tmp_path):
    if DEFAULT.exists():
        pytest.skip(f"{DEFAULT} exists on this machine")
    done = completed(*DEVHOST, "run", "--kubelet-dir", tmp_path)
    create = "create it with at least `version: 1` and `resources: []`, or name yours with --config FILE"
    assert (done.returncode, done.stderr) == (2, f"{DEFAULT}: there is no such file ({create})\n")


@pytest.mark.parametrize("command", [["discover"], ["explain", "one"]])
def test_a_refused_plugin_is_a_warning_in_commands_that_do_not_need_it(toys, command):
    broken = toys.config.parent / "backends" / "broken.py"
    broken.write_text("raise ValueError('no')")
    done = toys.devhost(*command)
    warning = f"warning: plugin {broken} was refused: {broken}:1: ValueError: no"
    assert (done.returncode, done.stderr.splitlines()) == (0, [warning])


def test_a_failed_start_is_logged_as_json_if_the_log_is_json(toys):
    toys.config.write_text("version: 1\nresources:\n  - {name: a/b/c, backend: nope}\n")
    as_text = toys.devhost("run").stderr.splitlines()
    done = toys.devhost("run", "--log-format", "json")
    assert done.returncode == 2
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [("error", "cannot start")] * 2
    assert [line["reason"] for line in lines] == as_text
    done = toys.devhost("run", "--log-format", "json", "--listen", "nothing")
    assert json.loads(done.stderr)["reason"].startswith("cannot listen on 'nothing'")


def test_a_kubelet_directory_that_is_a_file_exits_with_3(toys, tmp_path):
    (tmp_path / "file").touch()
    done = toys.devhost("run", "--kubelet-dir", str(tmp_path / "file"))
    assert done.returncode == 3
    assert done.stderr == f"devhost: {tmp_path / 'file'} is not a directory (choose another --kubelet-dir)\n"


def test_a_directory_too_long_for_a_socket_is_reported_at_once(toys, tmp_path):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    done = toys.devhost("run", "--kubelet-dir", str(long))
    assert done.returncode == 3
    assert "and Linux allows 107 (choose a shorter --kubelet-dir)" in done.stderr


@pytest.mark.usefixtures("ordinary_rights")
def test_a_directory_without_permission_exits_with_3_and_a_hint(toys, tmp_path):
    (tmp_path / "kubelet").mkdir(mode=0o555)
    done = toys.devhost("run", "--kubelet-dir", str(tmp_path / "kubelet"))
    assert done.returncode == 3
    assert "run devhost as root" in done.stderr


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="another Python may have no OpenSSL at all")
async def test_a_serving_process_does_not_load_openssl(toys, tmp_path):
    async with served(toys, tmp_path) as (_kubelet, process):
        libraries = Path(f"/proc/{process.pid}/maps").read_text()
        assert "libcrypto" not in libraries


def test_a_driver_whose_socket_has_too_long_a_path_is_refused_at_the_start(toys, tmp_path):
    toys.config.write_text(f"dra: {{driver: devhost.example.com}}\n{toys.config.read_text()}")

    done = toys.devhost(
        "run", "--kubelet-dir", str(tmp_path), "--plugins-registry", "/r", "--plugins-dir", f"/{'p' * 90}"
    )

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == (
        f"{toys.config}: dra.driver: the socket /{'p' * 90}/devhost.example.com/dra.sock would have a path "
        "of 120 bytes, and Linux allows 107 (choose a shorter driver name or --plugins-dir)"
    )


async def test_an_edit_to_a_driver_that_cannot_be_served_changes_nothing(toys, tmp_path):
    before = toys.config.read_text()
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        with running(toys, kubelet.directory, "--plugins-registry", f"/{'r' * 90}") as process:
            await until_served(kubelet)
            toys.config.write_text(f"dra: {{driver: devhost.example.com}}\n{before}")
            line = await asyncio.to_thread(
                next, (line for line in process.stderr if "configuration refused" in line)
            )
            assert "the socket /rrr" in line and "would have" in line
            assert kubelet.allocatable()["example.com/toy"] == 2


@pytest.fixture
def short_directory():
    """For sockets, whose paths are at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="devhost-") as directory:
        yield Path(directory)


WRITTEN = "cdi: {{directory: {cdi}}}\nlabels: {{directory: {labels}, write: true}}\n"


async def test_with_another_root_everything_is_written_below_it(toys, short_directory, monkeypatch):
    """Not to the directories of the machine that the recorded tree is looked at on."""
    marked = f"/var/tmp/devhost-test-{os.getpid()}"
    toys.write("name: example.com/toy, backend: toy, inject: cdi")
    text = toys.config.read_text()
    toys.config.write_text(text + WRITTEN.format(cdi="/var/run/cdi", labels=f"{marked}/labels"))
    (toys.root / marked.lstrip("/") / "labels").mkdir(parents=True)
    backend = toys.config.parent / "backends" / "toy.py"
    backend.write_text(backend.read_text().replace('nodes=(DeviceNode("/dev/null"),)', 'env={"TOY": "1"}'))
    outside = short_directory / "outside"
    outside.mkdir()
    (toys.root / "var/run").symlink_to(outside)  # as Debian's, which leads to /run
    root = short_directory / "r"
    root.symlink_to(toys.root)
    monkeypatch.delenv("DEVHOST_STATE_DIR", raising=False)
    async with KubeletSimulator(root / "var/lib/kubelet/device-plugins") as kubelet:
        with process_of.running(toys.config, root, kubelet.directory, runtime=toys.root / "run") as process:
            await until_served(kubelet)
            process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0
    assert not Path(marked).exists()
    assert not list(outside.iterdir())
    written = toys.root / str(outside).lstrip("/") / "cdi"
    assert [path.suffix for path in written.iterdir()] == [".json"]
    assert list((toys.root / "var/lib/devhost").iterdir())


def test_the_root_of_this_machine_is_known_also_where_it_is_mounted(tmp_path):
    assert is_this_machine(Path("/"))
    assert not is_this_machine(tmp_path)
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("another\n")
    assert not is_this_machine(tmp_path)
    boot.write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    assert is_this_machine(tmp_path)
