"""No text that a backend reads from hardware controls the terminal of a person who looks at it."""

from __future__ import annotations

import re

import pytest
from kit.command import DEVHOST, completed
from kit.drop_in import drop_in

BACKEND = drop_in("""
EVIL = "x\\x1b[2J\\nforged\\x7f\\x9b1m\\u2028\\u202e\\udc80"


class Evil(Plain):
    name = "evil"
    attributes = {"serial": Attribute(str, "serial", "A"), "links": Attribute(list, "links", ("a",))}

    def discover(self):
        yield Device("attribute", {"serial": EVIL, "links": (EVIL, "b")})
        yield Device("unhealthy", {"serial": "ok"}, health=unhealthy(EVIL))
        yield Device("withheld", {"serial": "ok"}, withheld=EVIL)
        yield Device("claim", {"serial": "ok"}, claims=frozenset({EVIL}))
        yield Device(EVIL, {"serial": "ok"})
        yield Device("name", {EVIL: "x"})

    def missing_drivers(self):
        return [MissingDriver(EVIL, EVIL)]
""")


@pytest.mark.parametrize(
    "arguments",
    [
        ("discover", "--all"),
        ("discover", "--output", "json"),
        *(("explain", name) for name in ("attribute", "unhealthy", "withheld", "claim", "name")),
    ],
    ids=lambda words: " ".join(words),
)
def test_no_command_passes_a_control_character_on(toys, arguments):
    backends = toys.config.parent / "backends"
    (backends / "evil.py").write_text(BACKEND)
    (backends / "broken.py").write_text('raise RuntimeError("a\\x1b[2J")\n')
    toys.write('name: "example.com/{serial}", backend: evil')
    done = toys.devhost(*arguments)
    text = done.stdout + done.stderr
    assert not re.search("[\0-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert not re.search("^forged", text, re.MULTILINE)


def test_the_text_of_an_exception_controls_no_terminal(toys):
    (toys.config.parent / "backends" / "broken.py").write_text('raise RuntimeError("a\\x1b[2J")\n')
    done = completed(*DEVHOST, "plugins", "--config", toys.config)
    assert "RuntimeError: a\\x1b[2J" in done.stdout


LONG = drop_in("""
class Long(Plain):
    name = "long"
    attributes = {"serial": Attribute(str, "serial", "A"), "odd": Attribute(str, "odd", "A")}

    def discover(self):
        yield Device("lengthy", {"serial": "s" * 10_000, "odd": "A1\\nB"})
""")


def test_a_very_long_value_is_cut_visibly_and_whole_in_json(toys):
    (toys.config.parent / "backends" / "long.py").write_text(LONG)
    toys.write("name: example.com/toy, backend: long, where: {serial: x}")
    for arguments in (("explain", "lengthy"), ("discover", "--all")):
        shown = toys.devhost(*arguments).stdout
        assert "s…" in shown
        assert max(map(len, shown.splitlines())) < 3000
        assert "s" * 10_000 in toys.devhost(*arguments, "--output", "json").stdout


def test_an_attribute_that_is_left_out_is_named(toys):
    (toys.config.parent / "backends" / "long.py").write_text(LONG)
    toys.write("name: example.com/toy, backend: long, where: {serial: x}")
    shown = toys.devhost("explain", "lengthy").stdout
    assert "  odd: left out, because it is not one line of printable text" in shown.splitlines()
    assert '"leftOut": [\n      "odd"\n    ]' in toys.devhost("explain", "lengthy", "--output", "json").stdout
