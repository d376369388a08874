"""The parts of ``make gpu`` that need no GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from kit.command import completed
from realgpu import __main__ as program
from realgpu import presence, sees, smi
from realgpu.enclosure import ALWAYS, Enclosure
from realgpu.results import Results

ANSWER = """\
0, GPU-8dfe9b2c-3b5a-11ee, NVIDIA H200, 00000000:3B:00.0, 143771, 9.0, 570.124.06, 165001, Enabled
1, GPU-8dfe9b2c-3b5a-11ef, NVIDIA GB10, 0000000F:01:00.0, [N/A], 12.1, 580.95.05, [N/A], [N/A]
"""


def test_the_answer_of_nvidia_smi_is_read() -> None:
    first, second = smi.parse(ANSWER)
    assert first == smi.Gpu(
        index=0,
        uuid="GPU-8dfe9b2c-3b5a-11ee",
        product="NVIDIA H200",
        address="0000:3b:00.0",
        memory=143771,
        compute_capability="9.0",
        driver="570.124.06",
        serial="165001",
        split=True,
    )
    assert (second.address, second.memory, second.serial, second.split) == ("000f:01:00.0", 0, "", False)
    assert smi.parse("") == []


@pytest.mark.parametrize("text", ["No devices were found", "0, GPU-1", "x, " * 9])
def test_an_unexpected_answer_of_nvidia_smi_is_an_error(text: str) -> None:
    with pytest.raises(smi.Failed, match="unexpected answer of nvidia-smi"):
        smi.parse(text)


def test_instances_are_distinguished_from_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = (
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-8dfe9b2c)\n  MIG 1g.10gb Device 0: (UUID: MIG-c6d4f1ef)\n"
    )
    monkeypatch.setattr(smi, "_run", lambda *arguments: answer)
    assert smi.instances() == {"MIG-c6d4f1ef"}


def test_a_machine_without_a_gpu_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(presence, "DRIVER", tmp_path / "version")
    assert program.main([]) == program.UNAVAILABLE
    assert "NVIDIA's driver is not loaded here" in capsys.readouterr().err
    (tmp_path / "version").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert presence.why_not() == "there is no program nvidia-smi"


def test_a_failing_program_is_reported_with_its_own_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML:'\necho 'Unknown Error'\nexit 255\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(smi.Failed, match=r"nvidia-smi failed: Failed to initialize NVML: Unknown Error"):
        smi.gpus()


def test_the_cuda_program_names_the_call_that_failed() -> None:
    with pytest.raises(OSError, match="cuda"):
        sees.seen("libcuda-of-nobody.so.1")


def test_an_enclosed_program_sees_the_nodes_it_was_given_and_no_others(tmp_path: Path) -> None:
    directory = tmp_path / "empty"
    directory.mkdir()
    enclosure = Enclosure(directory)
    if reason := enclosure.why_not():
        pytest.skip(reason)
    listing = "import json, os; print(json.dumps([[d, *f] for d, _, f in os.walk('/dev')]))"
    done = enclosure.run({"/dev/sub/given": "/dev/null"}, [sys.executable, "-I", "-c", listing])
    assert done.returncode == 0, done.stderr
    seen = {f"{place}/{name}" for place, *names in json.loads(done.stdout) for name in names}
    assert seen - {"/dev/params"} == {*ALWAYS, "/dev/sub/given"}
    assert list(directory.iterdir()) == []
    assert Path("/dev/null").is_char_device()


def test_the_table_has_each_thing_once_and_stays_a_table() -> None:
    results = Results()
    results.say("driver", "570")
    results.say("probe", "a | b")
    results.say("driver", "580")
    lines = results.table()
    assert [line.split("|")[1].strip() for line in lines] == ["what", "--------", "driver", "probe"]
    assert "580" in lines[2]
    assert "a \\| b" in lines[3]
    assert len({len(line) for line in lines}) == 1


def test_only_make_gpu_uses_a_gpu() -> None:
    here = Path(__file__).parent
    without = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    command = (sys.executable, "-m", "pytest", "-q", "-rs", *without, here / "test_real_gpu.py")
    done = completed(*command, cwd=here, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stdout
    assert "run make gpu" in done.stdout
    assert "passed" not in done.stdout
