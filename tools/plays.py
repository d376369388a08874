"""The plays for pages that quote devhost: each one brings a node into certain states.

A play is a generator. At each ``yield NAME`` the blocks of the page with this name are updated.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stage import Stage

Play = Callable[[Stage], Iterator[str]]

SERIAL = "example.com/serial"
FUSE = "example.com/fuse"


def _sick_backend(stage: Stage, body: str) -> None:
    """Configures a drop-in backend, and an entry that uses it."""
    directory = stage.config.parent / "backends"
    directory.mkdir()
    (directory / "card.py").write_text(body, encoding="utf-8")
    stage.configure(
        "version: 1\nbackendPaths: [backends]\nresources:\n- {name: example.com/card, backend: card}\n"
    )


def down(stage: Stage) -> Iterator[str]:
    """No devhost runs; then a file with two errors."""
    yield "down"
    text = stage.files["devhost.yaml"]
    stage.configure(text.replace("idVendor", "idVendr").replace("example.com/serial", "serial"))
    yield "wrong"


def no_kubelet(stage: Stage) -> Iterator[str]:
    """The kubelet is missing; then it runs, but the adapter does not match the file."""
    stage.configure(stage.files["devhost.yaml"])
    stage.usb_serial("ttyUSB0", product="5523")
    stage.kubelet_dir.mkdir()
    stage.serve()
    stage.until(lambda now: now["backends"][0]["devices"] > 0, "devices")
    stage.until(_asked_for_pods, "question for pods")
    yield "no-kubelet"
    stage.start_kubelet()
    stage.until(lambda now: now["kubelet"]["podResources"]["known"], "kubelet")
    yield "nothing-found"


def taken(stage: Stage) -> Iterator[str]:
    """An earlier entry takes the device."""
    entry = "- name: example.com/ch341\n  backend: udev\n  where: {driver: ch341-uart}\n"
    stage.configure(stage.files["devhost.yaml"].replace("resources:\n", f"resources:\n{entry}"))
    stage.usb_serial("ttyUSB0")
    yield "taken"


def refused_plugin(stage: Stage) -> Iterator[str]:
    """A drop-in that cannot be imported."""
    _sick_backend(stage, "import cardlib\n")
    yield "refused-plugin"


def registering(stage: Stage) -> Iterator[str]:
    """``kubelet.sock`` exists, but no process listens on it."""
    stage.configure(stage.files["devhost.yaml"])
    stage.usb_serial("ttyUSB0")
    stage.kubelet_dir.mkdir()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(stage.kubelet_dir / "kubelet.sock"))
    left.close()
    stage.serve()
    stage.until(lambda now: bool(_resource(now).get("lastError")), "error")
    stage.until(_asked_for_pods, "question for pods")
    yield "registering"


def unhealthy(stage: Stage) -> Iterator[str]:
    """A device loses its node, and then the file becomes invalid."""
    stage.configure(stage.files["devhost.yaml"])
    stage.usb_serial("ttyUSB0")
    stage.start_kubelet()
    stage.serve()
    stage.registered(SERIAL, 1)
    (stage.tree.root / "dev" / "ttyUSB0").unlink()
    stage.registered(SERIAL, 0)
    yield "unhealthy"
    stage.configure(stage.files["devhost.yaml"].replace("idVendor", "idVendr"))
    stage.until(lambda now: now["devhost"]["lastReload"]["result"] == "rejected", "refusal")
    yield "rejected"


CARD = """\
from devhost.backend import Backend, Device, Edits, hookimpl


class Card(Backend):
    name = "card"

    def discover(self):
        if (self.context.root / "dev/trouble").exists():
            raise RuntimeError("the card's driver does not answer")
        yield Device(id="card-0123")

    def allocate(self, request):
        return Edits()


@hookimpl
def devhost_backends():
    return [Card]
"""


def degraded(stage: Stage) -> Iterator[str]:
    """A backend works, and then fails."""
    _sick_backend(stage, CARD.replace('name = "card"', 'name = "card"\n    subsystems = ("*",)'))
    stage.start_kubelet()
    stage.serve()
    stage.registered("example.com/card", 1)
    stage.tree.node("/dev/trouble")
    stage.reload()
    stage.until(lambda now: now["backends"][0]["state"] == "degraded", "degraded backend")
    yield "degraded"


def first_resource(stage: Stage) -> Iterator[str]:
    """The tutorial, from the start to a kubelet restart."""
    stage.tree.device("virtual/misc/fuse", "misc", "fuse", "10:229")
    yield "look"
    stage.configure(stage.files["devhost.yaml"])
    yield "check"
    stage.start_kubelet()
    stage.serve()
    stage.registered(FUSE, 1)
    stage.hear("list-received")
    yield "registered"
    yield "status"
    stage.type(f"allocate 1 of {FUSE}", "/dev/fuse")
    yield "allocated"
    stage.type(f"allocate 1 of {FUSE}", "admission-failed")
    yield "refused"
    stage.until(lambda now: _resource(now)["devices"][0]["holder"] is not None, "holder")
    stage.type("release pod-1", "pod-released")
    stage.until(lambda now: not _resource(now)["devices"][0]["allocated"], "release")
    stage.printed()
    stage.configure(stage.files["shared.yaml"])
    stage.hear("misc-fuse::2")
    yield "shared"
    stage.registered(FUSE, 3)
    stage.until(lambda now: _resource(now)["capacity"] == 3, "the old token's end")
    for _ in range(3):
        stage.type(f"allocate 1 of {FUSE}", "/dev/fuse")
    stage.until(lambda now: all(one["holder"] for one in _resource(now)["devices"]), "three holders")
    stage.configure(stage.files["shared.yaml"].replace("devNode", "devNod"))
    stage.until(lambda now: now["devhost"]["lastReload"]["result"] == "rejected", "refusal")
    yield "broken"
    stage.configure(stage.files["shared.yaml"])
    stage.until(lambda now: now["devhost"]["lastReload"]["result"] == "ok", "good file")
    stage.printed()
    stage.type("restart", "misc-fuse::2")
    yield "restarted"


def _asked_for_pods(document: Mapping[str, Any]) -> bool:
    """Whether devhost has tried to get the kubelet's list of pods, which is not available."""
    return "does not exist" in document["kubelet"]["podResources"]["reason"]


def _resource(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = document["resources"]
    return dict(found[0]) if found else {}


PLAYS: Mapping[str, Sequence[Play]] = {
    "docs/troubleshooting.md": (
        down,
        no_kubelet,
        taken,
        refused_plugin,
        registering,
        unhealthy,
        degraded,
    ),
    "docs/tutorial.md": (first_resource,),
}
"""The plays of each page."""

AT_HOME: Mapping[str, Sequence[tuple[str, str]]] = {
    "docs/tutorial.md": (("{config}", "devhost.yaml"), ("{kubelet}", "/tmp/first/device-plugins")),
}
"""Paths that a page shows differently, because a laptop is not a node."""
