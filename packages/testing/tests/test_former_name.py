"""``devhost.testing``, the name that the kit had before."""

from __future__ import annotations

import subprocess
import sys

from kit.command import completed


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return completed(sys.executable, *options, "-c", code)


def test_the_former_name_leads_to_the_same_modules_with_a_warning() -> None:
    done = run(
        "import devhost.testing.kubelet.events, devhost_testing.kubelet.events as events\n"
        "from devhost.testing.trees import Tree\n"
        "import devhost_testing.trees as trees\n"
        "assert devhost.testing.kubelet.events is events and Tree is trees.Tree\n"
        "assert events.__name__ == events.__spec__.name == 'devhost_testing.kubelet.events'"
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "DeprecationWarning: devhost.testing has become devhost_testing, " in done.stderr


def test_a_module_that_there_never_was_is_named() -> None:
    done = run("import devhost.testing.nothing", "-W", "ignore")
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'devhost_testing.nothing'\n")
