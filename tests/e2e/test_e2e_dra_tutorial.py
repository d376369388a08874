"""The tutorial from a device plugin to DRA, followed on a real cluster.

A process of the node takes the place of the chart's DaemonSet, because pods of this cluster cannot reach the
API server. What the page passes to Helm, the process gets as its configuration.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from onenode import image
from onenode.claims import DRIVER
from onenode.cluster import Cluster
from onenode.kubectl import Refused
from onenode.settings import NODE
from onenode.waiting import until

PAGE = (Path(__file__).parents[2] / "docs/dra.md").read_text()
FUSE = "example.com/fuse"


def file(name: str) -> str:
    """A file that the reader writes."""
    found = re.search(rf"<!-- file: {re.escape(name)} -->\n```yaml fragment\n(.*?)```", PAGE, re.S)
    assert found is not None, name
    return found[1]


def section(number: int) -> str:
    """A numbered section of the page."""
    found = re.search(rf"\n## {number}\. .*?(?=\n## )", PAGE, re.S)
    assert found is not None
    return found[0]


def commands(number: int) -> list[list[str]]:
    """The commands of a section's shell blocks, as words."""
    blocks = re.findall(r"```sh\n(.*?)```", section(number), re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def consoles(number: int) -> list[tuple[list[str], list[str]]]:
    """The commands of a section with their quoted output, in lines with single spaces."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", section(number), re.S):
        for part in block.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            found.append((shlex.split(command), lines_of(output.replace("node7", NODE))))
    return found


def lines_of(output: str) -> list[str]:
    return [" ".join(line.split()) for line in output.splitlines() if line.strip()]


def shows(cluster: Cluster, command: list[str], output: list[str]) -> None:
    """Waits until a command prints what the page quotes."""

    def printed() -> list[str]:
        done = cluster.kubectl.try_(*command[1:])
        return lines_of(done.stdout + done.stderr)

    assert command[0] == "kubectl"
    until(shlex.join(command), lambda: printed() == output, seen=printed)


def here(document: Any) -> Any:
    """A pod of the page with the only image of the cluster, which makes no tokens for pods."""
    if document["kind"] == "Pod":
        document["spec"]["automountServiceAccountToken"] = False
        for container in document["spec"]["containers"]:
            container |= {"image": image.NAME, "imagePullPolicy": "Never"}
    return document


def test_the_tutorial_works_from_the_first_step_to_the_way_back(cluster, driver, claims, pods, tmp_path):
    settings = yaml.safe_load(file("devhost.yaml"))
    assert settings["dra"]["driver"] == DRIVER
    helm, rollout = commands(1)
    assert helm[:3] == ["helm", "upgrade", "devhost"] and "rollout" in rollout
    driver.configure(settings)
    for command, output in consoles(1):
        shows(cluster, command, output)

    settings["resources"][0]["serve"] = "dra"
    driver.configure(settings)
    for command, output in consoles(2):
        shows(cluster, command, output)

    print_classes, apply_classes = commands(3)
    assert print_classes[-5:] == ["devhost", "dra", "classes", ">", "classes.yaml"]
    assert apply_classes == ["kubectl", "apply", "-f", "classes.yaml"]
    claims.classes(driver)
    assert cluster.kubectl.get("deviceclass", "fuse.example.com")["spec"]["selectors"]

    pod = tmp_path / "pod.yaml"
    documents = [here(one) for one in yaml.safe_load_all(file("pod.yaml"))]
    pod.write_text(yaml.safe_dump_all(documents))
    apply, wait, logs = ([str(pod) if word == "pod.yaml" else word for word in one] for one in commands(4))
    try:
        cluster.kubectl.run(*apply[1:])
        cluster.kubectl.run(*wait[1:])
        assert "/dev/fuse" in until("the log has a line", lambda: _printed(cluster, logs))
    finally:
        delete = re.search(r"`kubectl (delete -f pod\.yaml)` releases the device", PAGE)
        assert delete is not None
        cluster.kubectl.run(*delete[1].replace("pod.yaml", str(pod)).split())

    settings["resources"][0]["dra"] = {"extendedName": True}
    assert yaml.safe_load(re.search(r"```yaml fragment\n(.*?)```", section(5), re.S)[1]) == {
        "serve": "dra",
        "dra": {"extendedName": True},
    }
    before = driver.status()["devhost"]["generation"]
    driver.configure(settings)
    until("devhost has the new configuration", lambda: driver.status()["devhost"]["generation"] > before)
    claims.classes(driver)
    old = pods.create("old", {FUSE: 1}).running()
    assert old.opens("/dev/fuse")
    old.delete()

    settings["resources"][0]["serve"] = "plugin"
    driver.configure(settings)
    until("the device has left its slice", lambda: not claims.offered(), seen=claims.offered)
    cluster.shows(FUSE, 1)
    assert pods.create("back", {FUSE: 1}).running().opens("/dev/fuse")


def _printed(cluster: Cluster, command: list[str]) -> str:
    try:
        return cluster.kubectl.run(*command[1:])
    except Refused:
        return ""
