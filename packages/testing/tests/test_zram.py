"""Real devices that tests plug do not outlive them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from devhost_testing.zram import Busy, Zram, why_not

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

KILLED = """\
import os, signal
from devhost_testing.zram import Busy, Zram

try:
    with Zram() as zram:
        print(zram.plug(), zram.plug(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
except Busy:
    pass
"""


def test_devices_of_a_killed_process_are_unplugged_by_the_next_one() -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False)
    left = killed.stdout.split()
    try:
        with Zram():
            assert [number for number in left if Path(f"/sys/block/zram{number}").exists()] == []
    except Busy as error:
        pytest.skip(str(error))
    if not left:
        pytest.skip("another program is plugging zram devices")
