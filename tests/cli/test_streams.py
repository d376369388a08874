"""Output that is closed, full, or no longer read never causes a traceback."""

from __future__ import annotations

import json
import os
import sys

import click
import pytest
from kit.command import DEVHOST, completed

from devhost.cli.program import root


def shell(toys, line):
    """Runs a shell command in which DEVHOST is the program and CONFIG its file."""
    text = line.replace("DEVHOST", " ".join(DEVHOST)).replace(
        "CONFIG", f"--config {toys.config} --root {toys.root}"
    )
    return completed("bash", "-c", f"set -o pipefail; {text}")


@pytest.mark.parametrize("streams", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_change_the_exit_code(toys, streams):
    done = shell(toys, f"DEVHOST discover CONFIG {streams}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert shell(toys, f"DEVHOST discover nothing.here/x CONFIG {streams}").returncode == 2


def test_a_closed_stream_is_never_replaced_by_a_socket(toys, tmp_path):
    """Otherwise output to standard error would go into a connection."""
    look = f"import os\nopen({str(tmp_path / 'said')!r}, 'w').write(os.readlink('/proc/self/fd/2'))\n"
    (toys.config.parent / "backends" / "look.py").write_text(look)
    shell(toys, "DEVHOST discover CONFIG <&- >&- 2>&-")
    assert (tmp_path / "said").read_text() == "/dev/null"


@pytest.mark.parametrize("command", ["discover CONFIG", "explain one CONFIG"])
def test_a_thread_of_a_backend_neither_delays_nor_aborts_the_end(toys, command):
    """The first never ends, the others return from a C library while the interpreter would shut down."""
    threads = """
import ctypes, threading
sleep = ctypes.CDLL(None).usleep
def spin():
    while True:
        sleep(1)
threading.Thread(target=threading.Event().wait).start()
for _ in range(4):
    threading.Thread(target=spin, daemon=True).start()
"""
    with (toys.config.parent / "backends" / "toy.py").open("a") as plugin:
        plugin.write(threads)
    done = shell(toys, f"timeout -s KILL 120 DEVHOST {command}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "one" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("command", ["discover CONFIG", "--help", "schema", "ready"])
def test_a_full_disk_is_reported_in_one_line(toys, command):
    done = shell(toys, f"DEVHOST {command} > /dev/full")
    said = "devhost: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (5, said)


def test_a_reader_that_closes_the_pipe_is_not_a_failure(toys):
    toys.plug(*(f"toy{n}={'x' * 60}" for n in range(3000)))
    done = shell(toys, "DEVHOST discover CONFIG | head -1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("RESOURCE")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("check $PWD/bad.yaml 2>&1 | true", 2),
        ("check $PWD/good.yaml $PWD/bad.yaml | true", 2),
        ("diff $PWD/good.yaml $PWD/none.yaml | true", 2),
        ("ready | true", 2),
        ("status --exit-code 2>&1 | true", 2),
    ],
)
def test_a_reader_that_closes_the_pipe_does_not_change_a_failure_to_success(tmp_path, toys, command, code):
    (tmp_path / "good.yaml").write_text("version: 1\nresources: []\n")
    (tmp_path / "bad.yaml").write_text("version: 1\nresources: [{}, {}, {}]\n")
    assert shell(toys, f"cd {tmp_path}; DEVHOST {command}").returncode == code


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
@pytest.mark.parametrize(("command", "code"), [("check $PWD/none.yaml", 2), ("status", 3), ("nonsense", 2)])
def test_errors_that_cannot_be_written_keep_their_exit_code(tmp_path, toys, command, code):
    assert shell(toys, f"cd {tmp_path}; DEVHOST {command} 2> /dev/full").returncode == code


def groups(group, path=()):
    """Every command that has commands, with the words that call it."""
    yield path, group
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from groups(command, (*path, name))


def test_help_shows_the_whole_summary_of_each_command(toys):
    found = dict(groups(root))
    assert found.keys() >= {(), ("dra",), ("import",)}
    for path in found:
        text = " ".join(shell(toys, f"COLUMNS=80 DEVHOST {' '.join(path)} --help").stdout.split())
        assert "..." not in text.partition("Commands:")[2]
    text = " ".join(shell(toys, "DEVHOST --help").stdout.split())
    assert "explain Shows why DEVICE is offered or not: its attributes, and the decision of each" in text


def test_the_version_has_a_short_option(toys):
    assert shell(toys, "DEVHOST -V").stdout == shell(toys, "DEVHOST --version").stdout


def test_every_command_with_an_output_option_has_its_short_form(toys):
    for command in ("check", "discover", "explain", "plugins", "status", "kubelet", "dra classes"):
        assert "-o, --output" in shell(toys, f"DEVHOST {command} --help").stdout


def test_the_shell_completes_commands():
    asked = {"COMP_WORDS": "devhost exp", "COMP_CWORD": "1", "_DEVHOST_COMPLETE": "bash_complete"}
    done = completed(*DEVHOST, env=os.environ | asked)
    assert done.stdout == "plain,explain\n"


CHATTY = """
import os
print("imported")
os.write(1, b"written\\n")
os.system("echo started")
discover = Toy.discover
def chatty(self):
    print("scanned", flush=True)
    os.write(1, b"written\\n")
    return discover(self)
Toy.discover = chatty
"""


@pytest.mark.parametrize(
    "command", ["discover CONFIG -o json", "check -o json $PWD/*.yaml", "explain one CONFIG -o json"]
)
def test_what_a_backend_prints_is_not_part_of_the_output(toys, command):
    with (toys.config.parent / "backends" / "toy.py").open("a") as plugin:
        plugin.write(CHATTY)
    done = shell(toys, f"cd {toys.config.parent}; DEVHOST {command}")
    assert done.returncode == 0
    json.loads(done.stdout)
    assert {"imported", "written", "started"} <= set(done.stderr.split())


LISTING = """
import collections, sys
read = collections.Counter()
sys.addaudithook(
    lambda event, found: read.update([found[0]])
    if event == "open" and str(found[0]).endswith("entry_points.txt")
    else None
)
from devhost.cli.program import root
root(["--help"], standalone_mode=False)
print(len(read), max(read.values()), file=sys.stderr)
"""


def test_help_looks_for_the_commands_of_other_packages_once():
    done = completed(sys.executable, "-c", LISTING)
    packages, reads = map(int, done.stderr.split())
    assert packages > 1 and reads == 1
    assert {"demo", "import", "kubelet"} <= set(done.stdout.split())
