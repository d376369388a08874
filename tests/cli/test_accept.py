"""``devhost accept`` as a process, beside a devhost that runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.kubelet import KubeletSimulator
from kit.waiting import until

TOY = "example.com/toy"


async def call(toys: Any, *arguments: str) -> tuple[int, str]:
    done = await asyncio.to_thread(toys.call, *arguments)
    return done.returncode, str(done.stdout + done.stderr).strip()


async def test_a_file_without_devices_waits_until_it_is_accepted(
    toys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "run"))
    state = tmp_path / "state"

    def problems() -> list[str]:
        document = json.loads(toys.call("status", "--output=json").stdout or "{}")
        return [one["reason"] for one in document.get("problems", ()) if one["kind"] == "config"]

    def recorded() -> bool:
        return any(TOY in file.read_text() for file in state.glob("rollout-*.json"))

    code, text = await call(toys, "accept")
    assert (code, text[:45]) == (3, "devhost: no devhost is running on this node (")
    toys.write(f"name: {TOY}, backend: toy")
    async with KubeletSimulator(tmp_path / "kubelet", pod_resources=tmp_path / "pods") as kubelet:
        with toys.running(kubelet.directory, "--state-dir", state):
            await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2}, 60)
            said = "devhost: this devhost runs without --patience, so it waits for nothing"
            assert await call(toys, "accept") == (2, said)
        with toys.running(kubelet.directory, "--state-dir", state, "--patience", "1h"):
            await until(recorded)
            said = "nothing to accept: devhost waits for no entry"
            assert await call(toys, "accept") == (0, said)
        toys.write(f"name: {TOY}, backend: toy, where: {{model: none}}")
        with toys.running(kubelet.directory, "--state-dir", state, "--patience=1h"):
            await until(lambda: problems() != [])
            (reason,) = problems()
            assert reason.startswith(f"no devices since the new file: {TOY} (until 2")
            assert await call(toys, "accept") == (0, f"accepted: no devices of {TOY}")
            assert problems() == []


async def test_a_patience_that_is_no_duration_is_refused(toys: Any) -> None:
    toys.write(f"name: {TOY}, backend: toy")
    assert await call(toys, "run", "--patience", "soon") == (
        2,
        "devhost: --patience soon is not a duration (write 90s, 10m or 1h)",
    )
