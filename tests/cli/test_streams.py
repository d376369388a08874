"""Output that is closed, full, or no longer read never causes a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

DEVHOST = f"{sys.executable} -m devhost"


def shell(toys, line):
    """Runs a shell command in which DEVHOST is the program and CONFIG its file."""
    text = line.replace("DEVHOST", DEVHOST).replace("CONFIG", f"--config {toys.config} --root {toys.root}")
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {text}"], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("streams", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_change_the_exit_code(toys, streams):
    done = shell(toys, f"DEVHOST discover CONFIG {streams}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert shell(toys, f"DEVHOST discover nothing.here/x CONFIG {streams}").returncode == 2


def test_a_closed_stream_is_never_replaced_by_a_socket(tmp_path):
    """Otherwise output to standard error would go into a connection."""
    code = "import os; from devhost.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += f"open({str(tmp_path / 'said')!r}, 'w').write(os.readlink('/proc/self/fd/2'))"
    environment = {**os.environ, "CODE": code}
    line = f'{sys.executable} -c "$CODE" --version <&- >&- 2>&-'
    subprocess.run(["bash", "-c", line], env=environment, timeout=240, check=True)
    assert (tmp_path / "said").read_text() == "/dev/null"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("command", ["discover CONFIG", "--help", "schema"])
def test_a_full_disk_is_reported_in_one_line(toys, command):
    done = shell(toys, f"DEVHOST {command} > /dev/full")
    said = "devhost: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_a_reader_that_closes_the_pipe_is_not_a_failure(toys):
    toys.plug(*(f"toy{n}={'x' * 60}" for n in range(3000)))
    done = shell(toys, "DEVHOST discover CONFIG | head -1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("RESOURCE")
