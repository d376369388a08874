"""Signals that reach ``devhost run`` during its start."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from kit.command import completed

# Sends a signal when the first big library is about to be imported: as early as one can arrive.
AT_FIRST_IMPORT = """
import os, signal, sys

for number in (signal.SIGHUP, signal.SIGTERM):  # nohup ignores the first, and children inherit that
    signal.signal(number, signal.SIG_DFL)

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), int(sys.argv.pop()))
        return None

sys.meta_path.insert(0, Sender())
from devhost.cli import main
main()
"""

# Sends a signal while the configuration is read, when plugins are imported; the first time only.
AT_PLUGIN = """
import os
from pathlib import Path
sent = Path(__file__).with_suffix(".sent")
if not sent.exists():
    sent.touch()
    os.kill(os.getpid(), {number})
"""


def early(number, *arguments):
    return completed(sys.executable, "-c", AT_FIRST_IMPORT, *arguments, str(int(number)))


def run(toys, tmp_path):
    socket = ("--status-socket", tmp_path / "status")
    return toys.running(tmp_path / "kubelet", *socket, log=subprocess.PIPE, runtime=tmp_path / "run")


def test_a_sighup_before_the_imports_does_not_end_the_process():
    done = early(signal.SIGHUP, "run", "--unknown")
    assert done.returncode == 2 and "No such option" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_before_the_imports_exits_with_0(number):
    done = early(number, "run", "--unknown")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGHUP, -signal.SIGHUP), (signal.SIGTERM, -signal.SIGTERM)],
)
def test_other_commands_keep_the_default_signal_handling(number, code):
    assert early(number, "plugins").returncode == code


def test_a_sighup_while_the_configuration_is_read_takes_effect_after_the_start(toys, tmp_path):
    (tmp_path / "backends" / "sender.py").write_text(AT_PLUGIN.format(number=int(signal.SIGHUP)))
    with run(toys, tmp_path) as process:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "configuration loaded" in line:
                process.terminate()
        assert process.wait(60) == 0
    assert [line for line in lines if "configuration loaded" in line and "generation=2" in line]
    assert not [line for line in lines if "Traceback" in line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_while_the_configuration_is_read_exits_with_0(toys, tmp_path, number):
    """Although the catalog catches every exception of an import."""
    (tmp_path / "backends" / "sender.py").write_text(AT_PLUGIN.format(number=int(number)))
    with run(toys, tmp_path) as process:
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()
