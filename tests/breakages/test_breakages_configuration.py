"""Broken configurations: one command names cause and fix; a running devhost reports them everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from reading_node import RESOURCE, ReadingNode


@dataclass(frozen=True)
class Broken:
    """A file with one error.

    Attributes:
        place: line and column of the error, as an editor counts them.
        cause: the part of the message with the cause.
        fix: the part of the message with what to write instead.
    """

    name: str
    text: str
    place: str
    cause: str
    fix: str


def entry(name: str, line: str, place: str, cause: str, fix: str) -> Broken:
    """A file with one entry, which is in line 3."""
    return Broken(name, f"version: 1\nresources:\n- {{{line}}}\n", place, cause, fix)


SERIAL = "name: example.com/serial, backend: udev"

BROKEN = (
    Broken("an empty file", "", "", "it is empty", "it needs at least version: 1"),
    Broken("a list", "- a\n", "1:1", "must be a mapping, not a list", "must be a mapping"),
    Broken("no version", "resources: []\n", "1:1", "the key version is required", "version: 1"),
    Broken("another version", "version: 2\nresources: []\n", "1:10", "not the number 2", "must be 1"),
    Broken(
        "a ConfigMap pasted whole",
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  devhost.yaml: |\n    version: 1\n    resources: []\n",
        "2:1",
        "this is a Kubernetes ConfigMap, not a configuration of devhost",
        'keep only the text of its key "devhost.yaml", without the indentation',
    ),
    Broken(
        "another Kubernetes object",
        "apiVersion: apps/v1\nkind: DaemonSet\n",
        "2:1",
        "this is a Kubernetes DaemonSet",
        "a configuration begins with `version: 1`",
    ),
    Broken("no resources", "version: 1\n", "1:1", "the key resources is required", "resources: []"),
    Broken(
        "a misspelt key",
        "version: 1\nresources: []\nbackend: {}\n",
        "3:1",
        '"backend"',
        "did you mean backends?",
    ),
    Broken(
        "a tab",
        "version: 1\nresources:\n\t- {}\n",
        "3:1",
        "cannot start any token",
        "YAML does not allow tabs",
    ),
    Broken(
        "wrong indentation",
        "version: 1\nresources:\n- name: a.b/c\n   backend: udev\n",
        "4:11",
        "mapping values are not allowed",
        "check the indentation",
    ),
    Broken(
        "an open bracket",
        "version: 1\nresources: [}\n",
        "2:13",
        "did not find expected node content",
        "check the indentation, brackets and quotes",
    ),
    Broken(
        "a key twice",
        "version: 1\nresources:\n- name: a.b/c\n  name: a.b/d\n  backend: udev\n",
        "4:3",
        'the key "name"',
        "keep one of the two",
    ),
    Broken(
        "a resource twice",
        f"version: 1\nresources:\n- {{{SERIAL}}}\n- {{{SERIAL}}}\n",
        "4:10",
        '"example.com/serial" is already offered by the entry in line 3',
        "make one entry of both",
    ),
    Broken(
        "two documents",
        "version: 1\nresources: []\n---\nversion: 1\n",
        "3:1",
        "a second document starts here",
        "a configuration is one document",
    ),
    Broken(
        "an option that the backend does not have",
        "version: 1\nbackends: {udev: {grups: []}}\nresources: []\n",
        "2:19",
        'unknown key "grups"',
        "did you mean groups?",
    ),
    entry(
        "no slash", "name: serial, backend: udev", "3:10", "has no slash", "for example example.com/serial"
    ),
    entry(
        "a variable",
        'name: "a.b/${NODE}", backend: udev',
        "3:10",
        'has "${NODE}" in it, and variables are not expanded',
        "write the name itself",
    ),
    entry("upper case", "name: Ab.c/d, backend: udev", "3:10", "illegal domain", "lower-case letters"),
    entry(
        "kubernetes.io",
        "name: kubernetes.io/x, backend: udev",
        "3:10",
        "belongs to Kubernetes",
        "example.com",
    ),
    entry(
        "a long name", f"name: a.b/{'x' * 64}, backend: udev", "3:10", "illegal part", "at most 63 characters"
    ),
    entry("no backend", "name: a.b/c", "3:3", "the key backend is required", "backend: udev"),
    entry("a misspelt backend", "name: a.b/c, backend: udevv", "3:26", "not installed", "did you mean udev?"),
    entry(
        "a misspelt attribute",
        f"{SERIAL}, where: {{idVendr: x}}",
        "3:53",
        '"idVendr"',
        "did you mean idVendor?",
    ),
    entry(
        "a number for text",
        f"{SERIAL}, where: {{idVendor: 1086}}",
        "3:63",
        "must be text",
        'in quotes: "1086"',
    ),
    entry(
        "a misspelt entry key", f"{SERIAL}, wher: {{}}", "3:45", 'unknown key "wher"', "did you mean where?"
    ),
    entry("no replicas", f"{SERIAL}, share: {{replicas: 0}}", "3:63", "not 0", "from 1 to 100000"),
    entry(
        "text for a number",
        f"{SERIAL}, share: {{replicas: many}}",
        "3:63",
        '"many"',
        "must be a whole number",
    ),
    entry("an unknown preference", f"{SERIAL}, prefer: packed", "3:53", '"packed"', "did you mean pack?"),
    entry("a quoted boolean", f'{SERIAL}, exclusive: "no"', "3:56", 'the text "no"', "write false"),
    entry("odd permissions", f"{SERIAL}, permissions: rx", "3:58", 'not "rx"', "must be r, w or rw"),
    entry(
        "a template of an unknown attribute",
        'name: "a.b/{prodct}", backend: gpu',
        "3:10",
        'no attribute "prodct"',
        "did you mean product?",
    ),
    entry(
        "an open brace", 'name: "a.b/{", backend: udev', "3:10", "a brace without its partner", "example.com"
    ),
    entry(
        "overrides of devices that are handed out together",
        f"{SERIAL}, share: {{of: all, overrides: [{{where: {{subsystem: tty}}, replicas: 2}}]}}",
        "3:73",
        "has no effect with of: all",
        "add a separate entry",
    ),
)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_check_names_place_cause_and_fix_in_one_line(
    broken: Broken, devhost: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text(broken.text)
    checked = devhost("check", str(file))
    assert checked.returncode == 2
    (line,) = (checked.stdout + checked.stderr).splitlines()
    assert line.startswith(f"{file}:{broken.place}: " if broken.place else f"{file}: ")
    assert broken.cause in line
    assert broken.fix in line


async def test_a_running_devhost_reports_each_of_them_everywhere_and_serves_on(node: ReadingNode) -> None:
    wrong = []
    for broken in BROKEN:
        node.config.write_text(broken.text)
        await node.until(lambda: node.problems("config"))
        (problem,) = await settled(node, broken)
        if missing := node.unsaid("config", str(node.config), problem["reason"]):
            wrong.append((broken.name, missing))
        if not (broken.cause in problem["reason"] and broken.fix in problem["reason"]):
            wrong.append((broken.name, problem["reason"]))
        assert node.value("devhost_config_last_reload_success") == 0
        assert node.kubelet.allocatable() == {RESOURCE: 3}
    node.configure(f"{{name: {RESOURCE}, backend: toy}}")
    await node.until(lambda: not node.document()["problems"])
    assert wrong == []


async def settled(node: ReadingNode, broken: Broken) -> list[dict[str, str]]:
    """The problem of this file: the one before it may still be shown for a moment."""

    def found() -> bool:
        problems = node.problems("config")
        return len(problems) == 1 and broken.cause in problems[0]["reason"]

    await node.until(found)
    return node.problems("config")
