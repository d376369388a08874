"""``devhost kubelet`` from a user's or a script's point of view: a process with pipes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from devhost_testing.kubelet import KubeletSimulator

RESOURCE = "example.com/tiny"
COMMAND = (sys.executable, "-c", "from devhost.cli import main; main()", "kubelet")
PATIENCE = 240.0


class Process:
    """A running command; its lines are stored and can be waited for."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    def tell(self, *commands: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{command}\n" for command in commands).encode())

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def until(self, wanted: Callable[[str], object]) -> str:
        """Reads up to the first matching line."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line.rstrip("\n"))
                if wanted(line):
                    return self.lines[-1]
        raise AssertionError("the output ended:\n" + "\n".join(self.lines))

    async def json(self, event: str) -> dict:
        return json.loads(await self.until(lambda line: json.loads(line)["event"] == event))

    async def end(self) -> tuple[int, str]:
        """Exit code and standard error."""
        async with asyncio.timeout(PATIENCE):
            out, err = await self.process.communicate()
        self.lines += out.decode().splitlines()
        assert self.process.returncode is not None
        return self.process.returncode, err.decode()


@asynccontextmanager
async def running(*arguments: object, **options: object) -> AsyncIterator[Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *map(str, arguments), stdin=options.get("stdin", pipe), stdout=pipe, stderr=pipe
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def script(
    directory: Path, *commands: str, options: tuple[str, ...] = ()
) -> tuple[int, str, list[str]]:
    """Exit code, standard error and lines of a session that gets all commands at once."""
    async with running("--dir", directory, "--exit-on-eof", *options) as kubelet:
        kubelet.tell(*commands)
        kubelet.end_input()
        code, err = await kubelet.end()
        return code, err, kubelet.lines


def started(line: str) -> bool:
    return "started" in line


async def test_the_help_begins_with_the_purpose():
    async with running("--help") as kubelet:
        code, err = await kubelet.end()
    assert (code, err) == (0, "")
    assert "Simulates a kubelet, to test a device plugin without Kubernetes" in "\n".join(kubelet.lines[:4])
    assert "allocate N of RESOURCE" in "\n".join(kubelet.lines)


async def test_a_session_shows_registration_list_and_allocation(plugin_dir, tiny):
    async with running("--dir", plugin_dir) as kubelet:
        await kubelet.until(started)
        plugin = await tiny()
        await plugin.register()
        line = await kubelet.until(lambda line: "list-received" in line)
        assert line.endswith(f"{RESOURCE}  tiny.sock: 2 healthy, 0 unhealthy; healthy: a, b")
        kubelet.tell(
            f"allocate 1 of {RESOURCE}", "pods", "devices", "capacity", "restart pod pod-1", "release pod-1"
        )
        await kubelet.until(lambda line: "pod-released" in line)
        kubelet.tell("quit")
        code, err = await kubelet.end()
    assert (code, err) == (0, "")
    text = "\n".join(kubelet.lines)
    assert "pod-1/main gets a\n" in text
    assert "device      /dev/null as /dev/x (rw)\n" in text
    assert "env         DEVICES=a\n" in text
    assert f"pod-1/main  {RESOURCE}  a\n" in text
    assert f"{RESOURCE}  a  healthy  held by pod-1\n" in text
    assert f"{RESOURCE}  capacity 2, allocatable 2, in use 1\n" in text
    assert "pod-1/main is restarted with\n" in text


async def test_json_lines_have_the_same_content(plugin_dir, tiny):
    async with running("--dir", plugin_dir, "--output", "json") as kubelet:
        assert (await kubelet.json("started"))["profile"] == "1.36"
        plugin = await tiny()
        await plugin.register()
        listed = await kubelet.json("list-received")
        assert listed["devices"][0] == {"id": "a", "health": "Healthy", "numa_nodes": []}
        kubelet.tell(
            f"wait for {RESOURCE}", f"allocate 2 of {RESOURCE} for mine", "devices", "capacity", "pods"
        )
        allocated = await kubelet.json("allocated")
        assert allocated["response"]["envs"]["DEVICES"] == "a,b"
        answers = {}
        for _ in range(4):
            answer = await kubelet.json("answer")
            answers[answer["command"].split()[0]] = answer["value"]
        assert answers["allocate"] == {"pod": "mine", "started": True, "reason": ""}
        assert answers["devices"][1]["pod"] == "mine"
        assert answers["capacity"] == {RESOURCE: {"capacity": 2, "allocatable": 2, "in_use": 2}}
        assert answers["pods"][0]["device_ids"] == ["a", "b"]
        kubelet.tell("quit")
        assert await kubelet.end() == (0, "")
    for line in kubelet.lines:
        assert {"time", "event"} <= json.loads(line).keys()


async def test_streams_can_be_killed_and_the_kubelet_restarted_and_crashed(plugin_dir, tiny):
    async with running("--dir", plugin_dir, "--profile", "1.37") as kubelet:
        await kubelet.until(started)
        plugin = await tiny()
        await plugin.register()
        await kubelet.until(lambda line: "list-received" in line)
        kubelet.tell(f"kill stream {RESOURCE}")
        await kubelet.until(lambda line: "disconnected" in line)
        kubelet.tell("restart")
        line = await kubelet.until(started)
        assert line.endswith("as kubelet 1.37, removed tiny.sock")
        kubelet.tell("crash")
        line = await kubelet.until(started)
        assert line.endswith("as kubelet 1.37, removed kubelet.sock")
        kubelet.tell("stop", "capacity", "start")
        await kubelet.until(lambda line: "is not running (start it first)" in line)
        await kubelet.until(started)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("dance", "unknown command 'dance' (run the command help to list all commands)"),
        ("alocate 1 of a/b", "(did you mean: allocate N of RESOURCE [for POD])"),
        ("allocate", "unknown command 'allocate' (did you mean: allocate N of RESOURCE [for POD])"),
        ("allocate none of a/b", "the number of devices must be a whole number above 0, not 'none'"),
        ("allocate 0 of a/b", "must be a whole number above 0, not '0'"),
        ("allocate 99999999999999 of a/b", "must be a whole number above 0"),
        ("allocate 1 of a/b", "admission-failed  a/b  pod-1/main: cannot allocate unregistered device a/b"),
        ("release me", "there is no pod me (run the command pods to list all pods)"),
        ("restart pod me", "pod me has no container main with devices"),
        ("devices a/b", "no plugin has listed devices of a/b"),
        ("kill stream a/b", "a/b has no open stream"),
        ("wait for a/b 0.01", "a/b had no free healthy device within 0.01 s"),
        ("wait for a/b soon", "the time to wait must be a number above 0, not 'soon'"),
        ("x" * 200_000, "unknown command"),
        ("\N{SNOWMAN}", "unknown command '\N{SNOWMAN}'"),
    ],
)
async def test_an_invalid_command_is_one_line_and_the_session_continues(plugin_dir, line, answer):
    code, err, lines = await script(plugin_dir, line, "capacity")
    assert (code, err) == (0, "")
    begin, *told, end = lines
    assert "started" in begin
    assert "stopped" in end
    assert told[-1] == "no plugin has registered a resource"
    assert answer in told[0]
    if len(line) < 1000:
        assert len(told) == 2


async def test_comments_empty_lines_and_an_unterminated_last_line_are_accepted(plugin_dir):
    async with running("--dir", plugin_dir, "--exit-on-eof") as kubelet:
        assert kubelet.process.stdin is not None
        kubelet.process.stdin.write(b"# a comment\n\n   \n  pods")
        kubelet.end_input()
        assert await kubelet.end() == (0, "")
    assert kubelet.lines[1:-1] == ["no pod holds a device"]


async def test_commands_may_come_from_a_file(plugin_dir, tmp_path):
    (tmp_path / "commands").write_text("pods\nquit\n")
    with (tmp_path / "commands").open() as commands:
        async with running("--dir", plugin_dir, stdin=commands) as kubelet:
            assert await kubelet.end() == (0, "")
    assert kubelet.lines[1] == "no pod holds a device"


async def test_the_end_of_input_does_not_stop_it_but_a_signal_does(plugin_dir):
    for number in (signal.SIGINT, signal.SIGTERM):
        async with running("--dir", plugin_dir) as kubelet:
            kubelet.tell("pods")
            kubelet.end_input()
            await kubelet.until(lambda line: "no pod" in line)
            assert (plugin_dir / "kubelet.sock").exists()
            kubelet.process.send_signal(number)
            assert await kubelet.end() == (0, "")
        assert "stopped" in kubelet.lines[-1]
        assert not (plugin_dir / "kubelet.sock").exists()


async def hanging(kubelet, tiny):
    """A plugin that hangs in Allocate."""
    await kubelet.until(started)
    plugin = await tiny()
    plugin.silent.add("allocate")
    await plugin.register()
    kubelet.tell(f"wait for {RESOURCE}", f"allocate 1 of {RESOURCE}")
    await kubelet.until(lambda line: "allocate-sent" in line)
    return plugin


async def test_a_signal_stops_it_even_if_a_plugin_hangs(plugin_dir, tiny):
    async with running("--dir", plugin_dir) as kubelet:
        await hanging(kubelet, tiny)
        kubelet.process.send_signal(signal.SIGTERM)
        assert await kubelet.end() == (0, "")


async def test_a_plugin_that_dies_in_a_call_is_reported_only_as_an_event(plugin_dir, tiny):
    async with running("--dir", plugin_dir) as kubelet:
        plugin = await hanging(kubelet, tiny)
        await plugin.stop()
        await kubelet.until(lambda line: "admission-failed" in line)
        kubelet.tell("quit")
        assert await kubelet.end() == (0, "")


async def test_a_closed_pipe_ends_it_silently(plugin_dir):
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("--dir", str(plugin_dir)),
        stdin=asyncio.subprocess.PIPE,
        stdout=writing,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(writing)
    os.close(reading)
    _, err = await asyncio.wait_for(process.communicate(b"help\n"), PATIENCE)
    assert (process.returncode, err) == (0, b"")
    assert not (plugin_dir / "kubelet.sock").exists()


async def test_the_directory_is_created_for_owner_and_group(plugin_dir):
    code, _, _ = await script(plugin_dir / "new")
    assert code == 0
    assert stat.S_IMODE((plugin_dir / "new").stat().st_mode) & 0o007 == 0


async def test_a_live_kubelet_is_not_replaced(plugin_dir, tiny):
    async with KubeletSimulator(plugin_dir) as real:
        plugin = await tiny()
        await plugin.register()
        await real.wait_for(lambda: real.healthy(RESOURCE))
        code, err, lines = await script(plugin_dir)
        assert (code, lines) == (3, [])
        assert err == (
            f"devhost: a kubelet already listens on {plugin_dir}/kubelet.sock, and another one would "
            f"disconnect "
            "its plugins (choose another directory)\n"
        )
        assert real.healthy(RESOURCE)


@pytest.mark.parametrize("directory", ["/proc/devhost", "/dev/null", "/" + "x" * 120])
async def test_an_unusable_directory_is_one_line_and_exit_code_3(directory):
    async with running("--dir", directory) as kubelet:
        code, err = await kubelet.end()
    assert (code, err.count("\n"), kubelet.lines) == (3, 1, [])
    assert directory in err
