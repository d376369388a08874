"""``devhost demo``: ends by itself and shows an allocation on any machine."""

from __future__ import annotations

from kit.command import DEVHOST, completed


def demo(*arguments):
    return completed(*DEVHOST, "demo", *arguments)


def test_the_demo_shows_resources_and_what_a_pod_gets_and_ends(toys):
    drop_in = toys.config.parent / "backends" / "toy.py"
    drop_in.write_text(
        drop_in.read_text().replace("self.context.root", f"type(self.context.root)({str(toys.root)!r})")
    )
    done = demo("--config", str(toys.config))
    assert (done.returncode, done.stderr) == (0, "")
    assert "example.com/toy  2/2" in done.stdout
    assert "/dev/null (rw)" in done.stdout


def test_the_bundled_configuration_runs_on_this_machine():
    done = demo()
    assert done.returncode == 0, done.stderr
    # a device of this machine may be unhealthy, be missing or lack its driver, or come and go
    usual = (" devhost.host.shown.device_log ", " devhost.host.shown.shortages ")
    assert not [line for line in done.stderr.splitlines() if not any(one in line for one in usual)]
    assert "RESOURCE" in done.stdout


def test_a_wrong_configuration_is_refused_in_one_line(toys):
    toys.write("name: nope, backend: toy")
    done = demo("--config", str(toys.config))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
