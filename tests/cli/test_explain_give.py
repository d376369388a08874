"""``devhost explain`` shows what a container would get by `give`."""

from __future__ import annotations

import json
import re

GIVE = (
    'give: {nodes: [{path: /dev/ctl}, {path: /dev/log, containerPath: "/dev/{model}", optional: true}],'
    " mounts: [{path: /toys, readOnly: false}, {path: /opt, optional: true}],"
    ' env: {"TOY{index}": "{id} of {count}", SOME: {value: "{model}", when: partial}},'
    ' annotations: {a: "{model}"}, cdiDevices: ["a.b/c={model}"]}'
)


def test_explain_shows_what_a_container_with_the_device_would_get(toys) -> None:
    toys.write(f"name: example.com/toy, backend: toy, {GIVE}")
    shown = [line.strip() for line in toys.devhost("explain", "one").stdout.splitlines()]
    assert [line.removeprefix("gives: ") for line in shown if line.startswith("gives: ")] == [
        "/dev/ctl (does not exist)",
        "/dev/log at /dev/x100 (omitted, as it does not exist)",
        "/toys read-write",
        "/opt read-only (omitted, as it does not exist)",
        "TOY0=one of 1",
        "SOME=x100",
        "a=x100",
        "a.b/c=x100",
    ]
    (document,) = json.loads(toys.devhost("explain", "one", "--output", "json").stdout)
    reason = document["verdicts"][0]["reason"]
    assert reason.endswith("is Unhealthy there: /dev/ctl does not exist on the node: give needs it")
    gives = document["verdicts"][0]["gives"]
    assert gives["refused"] == ""
    assert gives["nodes"][1] == {
        "path": "/dev/log",
        "containerPath": "/dev/x100",
        "permissions": "rw",
        "optional": True,
        "exists": False,
    }
    assert gives["mounts"][0] == {
        "path": "/toys",
        "containerPath": "/toys",
        "readOnly": False,
        "optional": False,
        "exists": True,
    }
    assert gives["env"] == {"TOY0": "one of 1", "SOME": "x100"}
    assert (gives["annotations"], gives["cdiDevices"]) == ({"a": "x100"}, ["a.b/c=x100"])


def test_a_container_with_the_only_device_has_all_of_them(toys) -> None:
    toys.plug("one=x100")
    toys.write(f"name: example.com/toy, backend: toy, {GIVE}")
    assert "SOME=" not in toys.devhost("explain", "one").stdout


def test_explain_shows_what_a_container_with_the_unit_of_the_device_would_get(toys) -> None:
    toys.plug("one=x100", "two=x100", "three=x200")
    give = "give: {env: {'TOY{index}': '{id} of {count}', SOME: {value: '{model}', when: partial}}}"
    toys.write(f"name: example.com/toy, backend: toy, share: {{of: model}}, {give}")
    shown = toys.devhost("explain", "two").stdout
    assert "  gives: TOY0=x100 of 1\n  gives: SOME=x100\n" in shown


def test_explain_shows_why_a_pod_would_be_refused_and_nothing_that_controls_the_terminal(toys) -> None:
    toys.plug("one=..", "two=x\x1b[2Jy")
    toys.write(
        "name: example.com/toy, backend: toy,"
        ' give: {nodes: [{path: /dev/ctl, containerPath: "/dev/{model}"}], env: {A: "{model}"}}'
    )
    text = toys.devhost("explain", "one").stdout
    refused = "one: /dev/ctl would be at /dev/.. in the container, which goes up with .."
    assert f"  gives: refused: {refused}\n" in text
    text = toys.devhost("explain", "two").stdout
    assert "  gives: refused: two: it has no model, which containerPath /dev/{model} of give needs\n" in text
    assert not re.search("[\0-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_an_entry_without_give_shows_nothing_of_it(toys) -> None:
    assert "gives" not in toys.devhost("explain", "one").stdout
    (document,) = json.loads(toys.devhost("explain", "one", "--output", "json").stdout)
    assert "gives" not in document["verdicts"][0]
