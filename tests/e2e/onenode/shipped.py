"""The project's image and chart, and whether they are available here.

python -m onenode.shipped            finds or builds Helm and the image

If this machine or its network cannot provide one of them, the reason is kept, and tests that need it are
skipped with that reason. The exit code is 1 for an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import devhost

from .binaries import UNAVAILABLE, cache
from .fetching import Unavailable, say

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "tests" / "chart"))

import programs  # noqa: E402 - found on the path only now

CHART = REPOSITORY / "deploy" / "helm" / "devhost"
ARCHIVE = REPOSITORY / "build" / "image" / f"devhost-{devhost.__version__}.oci.tar"

VARIABLE = "DEVHOST_E2E_IMAGE"
"""The environment variable for the archive of another image."""

IMAGE = "local.test/devhost"
"""The repository of the image on the node; no registry has it."""

TAGS = (devhost.__version__, "next")
"""The same image under two tags: the chart's, and one to upgrade to."""


class Missing(Exception):
    """What is missing, and how to get it; one line."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """The image's archive, and the Helm that renders the chart."""

    archive: Path
    helm: Path

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """The output of ``helm template`` for the chart with these values.

        Raises:
            ValueError: the chart refuses them; the text is Helm's message.
        """
        done = subprocess.run(
            [self.helm, "template", name, CHART, f"--namespace={name}", "--values=-"],
            input=json.dumps(values),
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise ValueError(f"the chart cannot be rendered: {done.stderr.strip()}")
        return done.stdout


def find() -> Shipped:
    """What is available.

    Raises:
        Missing: something is missing.
    """
    if named := os.environ.get(VARIABLE):
        archive = Path(named).absolute()
        if not archive.is_file():
            raise Missing(f"{VARIABLE}={named} is not a file")
    else:
        archive = ARCHIVE
        if (record := _record()).exists():  # an older image does not test the present code
            raise Missing(record.read_text())
        if not archive.exists():
            raise Missing(f"there is no {archive.relative_to(REPOSITORY)}: run `make image`")
    try:
        return Shipped(archive, programs.find("helm"))
    except programs.Missing as error:
        raise Missing(str(error)) from None


def make() -> None:
    """Builds what is missing or outdated.

    Raises:
        Missing: one cannot be built because of an error.
        Unavailable: one is not available on this machine.
    """
    programs.make("helm")
    if not os.environ.get(VARIABLE):
        _make_image()


def _make_image() -> None:
    tool = [sys.executable, "-m", "image"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tools")}
    last = "no reason was given"
    with subprocess.Popen(
        tool, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip().removeprefix("image: ") or last
            say(last)
    if process.returncode == UNAVAILABLE:
        raise Unavailable(last)
    if process.returncode:
        raise Missing(f"there is no image: {last}")


def _record() -> Path:
    """Why the last build of the image failed."""
    return cache() / "no-image"


def main() -> None:
    record = _record()
    record.parent.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)
    try:
        make()
    except Unavailable as error:
        record.write_text(str(error))
        say(f"the tests of image and chart are skipped: {error}")
    except (Missing, programs.Missing) as error:
        sys.exit(f"e2e: {error}")


if __name__ == "__main__":
    main()
