"""The writers of verdicts: on output as their programs print it, and read as devhost reads it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from kit.command import completed

from devhost.discovery.verdicts import settled

HEALTH = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "health"
SCRIPTS = sorted(HEALTH.glob("*.py"))

DCGM = """\
Listening for violations.
Timestamp: Wed Jan 28 00:34:23 2026
XID error 43 detected.
Timestamp: Wed Jan 28 00:34:25 2026
XID error 79 detected.
"""
DCGM_ECC = """\
Timestamp: Wed Jan 28 00:34:23 2026
A double-bit ECC error has violated policy manager values.
DBE error count: 1
"""
HL_SMI = """\
0000:B3:00.0, {}
0000:b4:00.0, 0
0000:43:00.0, N/A
"""
NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc1                 Version: 24.1.rc1                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B2C              | {:<13} | 86.8        35                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          59356/ 65536         |
+===========================+===============+====================================================+
| 1     910B2C              | Warning       | 103.1       37                0    / 0             |
| 0                         | 0000:19:00.0  | 0           0    / 0          59351/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 171273        | python                   | 53984                   |
+===========================+===============+====================================================+
"""
AMD = """\
# HELP gpu_health Health of the GPU (0 = Unhealthy | 1 = Healthy)
# TYPE gpu_health gauge
gpu_health{{card_model="0xc34",gpu_id="0",hostname="n1",serial_number="692251001124"}} {}
gpu_health{{card_model="0xc34",gpu_id="1",hostname="n1",serial_number="692251001125"}} 1
gpu_nodes_total{{hostname="n1"}} 2
"""
NPD = """\
# TYPE problem_gauge gauge
problem_gauge{{reason="XidHasOccurred",type="XidError"}} {}
problem_gauge{{reason="VMEventScheduled",type="VMEventScheduled"}} 0
"""


class Bench:
    """A script, a program that prints what was recorded, and the directory of verdicts."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.directory = place / "verdicts"
        (place / "bin").mkdir()

    def program(self, name: str, prints: str, code: int = 0) -> None:
        file = self.place / "bin" / name
        (self.place / f"{name}.txt").write_text(prints)
        file.write_text(
            f'#!/bin/sh\necho "$@" > {self.place}/{name}.args\ncat {self.place}/{name}.txt\nexit {code}\n'
        )
        file.chmod(0o755)

    def asked(self, name: str) -> str:
        return (self.place / f"{name}.args").read_text().strip()

    def run(self, script: str, *arguments: str, **variables: str) -> int:
        path = f"{self.place / 'bin'}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "VERDICTS": str(self.directory), **variables}
        return completed(sys.executable, HEALTH / f"{script}.py", *arguments, env=env).returncode

    def verdicts(self) -> dict[str, str]:
        """Each device with the reason."""
        found = [one for one in settled(self.directory, self.place).verdicts if one.holds(1e10)]
        return {name: one.text for one in found for name in one.names}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@contextmanager
def served(text: str) -> Iterator[str]:
    """An address at which ``/metrics`` has this text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_can_be_run(script: Path) -> None:
    assert len(script.read_text().splitlines()) <= 40
    assert os.access(script, os.X_OK) and script.read_text().startswith("#!/usr/bin/env python3\n")
    assert f"({script.name})" in (HEALTH / "README.md").read_text()


def test_there_is_one_for_each_program() -> None:
    names = {path.stem for path in SCRIPTS}
    assert names == {"amd-metrics-exporter", "dcgm", "hl-smi", "node-problem-detector", "npu-smi"}


def test_a_violation_of_a_dcgm_policy_makes_the_gpu_of_the_group_unhealthy(bench: Bench) -> None:
    bench.program("dcgmi", DCGM)
    assert bench.run("dcgm", "GPU-1", "2") == 0
    assert bench.asked("dcgmi") == "policy -g 2 --reg"
    assert bench.verdicts() == {"GPU-1": "XID 79 (dcgm)"}
    bench.program("dcgmi", DCGM_ECC, code=3)
    assert bench.run("dcgm", "GPU-2", "3") == 3
    assert bench.verdicts() == {"GPU-1": "XID 79 (dcgm)", "GPU-2": "double-bit ECC error (dcgm)"}


def test_a_xid_that_a_program_can_cause_is_none(bench: Bench) -> None:
    bench.program("dcgmi", DCGM.replace("79", "31"))
    assert bench.run("dcgm", "GPU-1", "2") == 0
    assert not bench.directory.exists()


def test_an_accelerator_is_unhealthy_while_hl_smi_counts_errors(bench: Bench) -> None:
    bench.program("hl-smi", HL_SMI.format(3))
    assert bench.run("hl-smi") == 0
    assert bench.asked("hl-smi") == "-Q bus_id,ecc.errors.uncorrected.volatile.total -f csv,noheader"
    assert bench.verdicts() == {"0000:b3:00.0": "3 uncorrected memory errors (hl-smi)"}
    bench.program("hl-smi", "", code=1)
    assert bench.run("hl-smi") != 0
    assert len(bench.verdicts()) == 1
    bench.program("hl-smi", HL_SMI.format(0))
    assert bench.run("hl-smi") == 0
    assert bench.verdicts() == {}


def test_an_npu_is_unhealthy_while_npu_smi_reports_an_alarm(bench: Bench) -> None:
    for health, verdicts in (("Alarm", {"0000:c1:00.0": "NPU 0: Alarm (npu-smi)"}), ("OK", {})):
        bench.program("npu-smi", NPU_SMI.format(health))
        assert bench.run("npu-smi") == 0
        assert bench.verdicts() == verdicts


def test_a_gpu_is_unhealthy_while_the_metrics_exporter_reports_that(bench: Bench) -> None:
    reason = "the metrics exporter reports it unhealthy (amd)"
    for prefix, value, verdicts in (("", 0, {"692251001124": reason}), ("amd_", 1, {})):
        with served(AMD.format(value).replace("\ngpu_health", f"\n{prefix}gpu_health")) as address:
            assert bench.run("amd-metrics-exporter", EXPORTER=address) == 0
        assert bench.verdicts() == verdicts


def test_named_devices_are_unhealthy_while_a_node_has_a_condition(bench: Bench) -> None:
    arguments = ["XidError=GPU-1,GPU-2", "VMEventScheduled=*"]
    reason = "XidError: XidHasOccurred (npd)"
    for value, verdicts in ((1, {"GPU-1": reason, "GPU-2": reason}), (0, {})):
        with served(NPD.format(value)) as address:
            assert bench.run("node-problem-detector", *arguments, DETECTOR=address) == 0
        assert bench.verdicts() == verdicts


def test_a_file_that_does_not_change_is_not_written_again(bench: Bench) -> None:
    bench.program("hl-smi", HL_SMI.format(3))
    times = set()
    for _ in range(2):
        assert bench.run("hl-smi") == 0
        (file,) = bench.directory.iterdir()
        times.add((file.stat().st_ino, file.stat().st_mtime_ns))
    assert len(times) == 1
