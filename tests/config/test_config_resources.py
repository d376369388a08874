"""Resources: selections, names, sharing, and what entries do to each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from work import Work

from devhost.backend import Attribute, where
from devhost.backend.errors import Diagnostic
from devhost.backend.where import Block, Flag, Range, Term, Text
from devhost.config.diagnostics import Diagnostics, KeyPath
from devhost.config.document import parse
from devhost.config.reader import declared, read_where
from devhost.planning.settings import Inject, Of, Prefer, Settings, Share, WhenEmpty

Read = Callable[[str], Settings]
Complain = Callable[[str], tuple[Diagnostic, ...]]
One = Callable[[str], str]


def file(*entries: str) -> str:
    return "version: 1\nresources:\n" + "".join(f"- {{backend: card, {entry}}}\n" for entry in entries)


def test_an_entry_has_the_documented_defaults(read: Read) -> None:
    (found,) = read(file("name: a.b/c")).resources
    assert (found.index, found.name, found.backend, found.where) == (0, "a.b/c", "card", ())
    assert (found.share.replicas, found.share.overrides) == (1, ())
    assert (found.prefer, found.inject, found.when_empty) == (Prefer.TOPOLOGY, Inject.DIRECT, WhenEmpty.WAIT)
    assert found.exclusive is True
    assert (found.topology, found.healthy_while, found.permissions) == (True, (), "")
    assert (found.optional, found.take_over, found.check_starts) == (False, False, False)
    assert found.share.max_per_container is None


def test_every_key_of_an_entry_is_read(read: Read) -> None:
    text = file(
        "name: 'a.b/{vendor}-{ID_MODEL}', where: {virtual: true}, prefer: distinct, inject: cdi,"
        " exclusive: false, whenEmpty: register,"
        " topology: false, healthyWhile: {sysattr.device/status: operational}, permissions: mrw,"
        " optional: true, takeOver: true, checkStarts: true,"
        " share: {replicas: 3, maxPerContainer: 2, overrides: [{where: {vendor: x}, replicas: 5}]}"
    )
    (found,) = read(text).resources
    assert (found.prefer, found.inject, found.when_empty) == (Prefer.DISTINCT, Inject.CDI, WhenEmpty.REGISTER)
    assert found.exclusive is False
    assert found.share.replicas == 3
    (override,) = found.share.overrides
    assert (override.replicas, override.where) == (5, (Block((Term("vendor", (Text("x"),)),)),))
    assert (found.optional, found.take_over, found.check_starts) == (True, True, True)
    assert (found.topology, found.permissions, found.share.max_per_container) == (False, "mrw", 2)
    operational = Term("sysattr.device/status", (Text("operational"),))
    assert found.healthy_while == (Block((operational,)),)
    assert found.wanted() == {"vendor", "ID_MODEL", "virtual", "sysattr.device/status"}


def test_devices_are_shared_one_by_one_unless_the_entry_has_of_all(read: Read) -> None:
    each, together = read(
        file("name: a.b/c, exclusive: false", "name: a.b/d, exclusive: false, share: {replicas: 7, of: all}")
    ).resources
    assert (each.share.of, together.share) == (Of.EACH, Share(7, (), Of.ALL))


def test_devices_may_be_one_by_an_attribute_which_the_backend_is_asked_for(read: Read) -> None:
    (found,) = read(file("name: a.b/c, share: {of: numaNode, members: 2, replicas: 3}")).resources
    assert found.share == Share(3, (), "numaNode", members=2)
    assert "numaNode" in found.wanted()


def test_an_entry_below_units_may_get_what_they_refuse(read: Read) -> None:
    entries = read(file("name: a.b/c, share: {of: numaNode}", "name: a.b/d")).resources
    assert [entry.name for entry in entries] == ["a.b/c", "a.b/d"]


def test_overrides_of_devices_allocated_together_are_refused_at_their_position(complaints: Complain) -> None:
    (found,) = complaints(file("name: a.b/c,\n  share: {of: all, overrides: [{where: {}, replicas: 3}]}"))
    assert (found.line, found.column, found.path) == (4, 31, "resources[0].share.overrides")
    assert found.hint.startswith("remove them, or add a separate entry")


@pytest.mark.parametrize(
    ("overrides", "hidden"),
    [
        (["{vendor: 'i*'}", "{vendor: intel}"], [1]),
        (["{}", "{vendor: intel}", "{kind: pf}"], [1, 2]),
        (["{vendor: intel}", "{vendor: amd}", "{vendor: [amd, intel], kind: pf}"], []),
        (["{vendor: intel}", "{vendor: amd}", "[{vendor: amd}, {vendor: intel}]"], [2]),
        (["{vendor: intel}", "{vendor: 'i*'}", "{}"], []),
    ],
)
def test_an_override_that_never_applies_is_refused(
    complaints: Complain, read: Read, overrides: list[str], hidden: list[int]
) -> None:
    items = ", ".join(f"{{where: {where}, replicas: 3}}" for where in overrides)
    text = file(f"name: a.b/c, share: {{overrides: [{items}]}}")
    if not hidden:
        assert len(read(text).resources[0].share.overrides) == len(overrides)
        return
    found = complaints(text)
    assert [one.path for one in found] == [f"resources[0].share.overrides[{n}].where" for n in hidden]
    assert all("has no effect: overrides above it select all" in one.message for one in found)


BLOCK = "{{vendor: 'v{0}-{1}*', not: [{{vendor: 'n{0}'}}]}}"
ENTRIES = [  # an entry, what it has several times, and both numbers in a file and in one of twice the length
    ("name: a.b/r{0}, where: [{1}]", BLOCK, (30, 10), (60, 10)),
    ("name: a.b/r{0}, where: [{1}]", "{{kind: vf, vendor: 'v{0}-{1}'}}", (30, 10), (60, 10)),
    ("name: a.b/r{0}, where: {{vendor: [{1}]}}", "v{0}-{1}*", (30, 10), (60, 10)),
    ("name: a.b/r{0}, where: {{vendor: x, not: {1}}}", BLOCK, (60, 1), (120, 1)),
    (
        "name: a.b/r{0}, share: {{overrides: [{1}]}}",
        f"{{{{where: {BLOCK}, replicas: 2}}}}",
        (1, 300),
        (1, 600),
    ),
]


@pytest.mark.parametrize(
    ("entry", "part", "small", "large"), ENTRIES, ids=["blocks", "common", "values", "not", "overrides"]
)
def test_reading_a_file_takes_work_in_proportion_to_its_conditions(
    read: Read, entry: str, part: str, small: tuple[int, int], large: tuple[int, int]
) -> None:
    def lines(entries: int, times: int) -> int:
        texts = [", ".join(part.format(n, m) for m in range(times)) for n in range(entries)]
        work = Work()
        with work.counted():
            read(file(*(entry.format(n, text) for n, text in enumerate(texts))))
        return work.lines

    few, many = lines(*small), lines(*large)
    assert many <= 2.3 * few, f"{few} lines, {many} for a file of twice the length"


def test_a_wrong_override_causes_no_complaint_about_the_next(complaints: Complain) -> None:
    wrong = "{where: {vender: x}, replicas: 3}, {where: {vendor: x}, replicas: 3}"
    (found,) = complaints(file(f"name: a.b/c, share: {{overrides: [{wrong}]}}"))
    assert found.path == "resources[0].share.overrides[0].where"


@pytest.mark.parametrize(
    ("selection", "blocks"),
    [
        ("{vendor: intel}", (Block((Term("vendor", (Text("intel"),)),)),)),
        ("{vendor: [a, 'b*']}", (Block((Term("vendor", (Text("a"), Text("b*"))),)),)),
        ("{idVendor: 1a86}", (Block((Term("idVendor", (Text("1a86", fold=True),)),)),)),
        ("{numaNode: 1}", (Block((Term("numaNode", (Range(1, 1),)),)),)),
        (
            "{numaNode: '0-3,6, 8-'}",
            (Block((Term("numaNode", (Range(0, 3), Range(6, 6), Range(8, None))),)),),
        ),
        ("{numaNode: ['-2', 5]}", (Block((Term("numaNode", (Range(None, 2), Range(5, 5))),)),)),
        ("{virtual: false}", (Block((Term("virtual", (Flag(False),)),)),)),
        ("{links: /dev/serial/*}", (Block((Term("links", (Text("/dev/serial/*"),)),)),)),
        ("{kind: 'v*'}", (Block((Term("kind", (Text("v*"),)),)),)),
        ("{modes: [safe]}", (Block((Term("modes", (Text("safe"),)),)),)),
        ("{ID_MODEL: x}", (Block((Term("ID_MODEL", (Text("x"),)),)),)),
        ("{sysattr.queue/rotational: '0'}", (Block((Term("sysattr.queue/rotational", (Text("0"),)),)),)),
        ("{not: {vendor: x}}", (Block((), (Block((Term("vendor", (Text("x"),)),)),)),)),
        (
            "{not: [{vendor: x}, {virtual: true}]}",
            (Block((), (Block((Term("vendor", (Text("x"),)),)), Block((Term("virtual", (Flag(True),)),)))),),
        ),
        (
            "[{vendor: x}, {virtual: true}]",
            (Block((Term("vendor", (Text("x"),)),)), Block((Term("virtual", (Flag(True),)),))),
        ),
        ("{}", ()),
    ],
)
def test_a_where_is_read_as_its_conditions(read: Read, selection: str, blocks: where.Where) -> None:
    assert read(file(f"name: a.b/c, where: {selection}")).resources[0].where == blocks


@pytest.mark.parametrize(
    "pattern",
    ["/dev/b", "/dev/*", "/*", "*", "?dev/b", "[/]dev/b", "/d*", r"/dev/by-label/a\x20b", "/dev/a b"],
)
def test_a_pattern_that_a_value_may_match_is_accepted(read: Read, pattern: str) -> None:
    entry = read(file(f"name: a.b/c, where: {{path: '{pattern}'}}")).resources[0]
    assert entry.wanted() == {"path", "links"}  # a link to the node is another name of it


@pytest.mark.parametrize(
    "selection",
    [
        "{address: '0000:3b:0[0-3].*'}",
        "{address: '10000:E1:00.0'}",
        "{address: '*:3b:00.0'}",
        "{address: '0000:*'}",
        "{driver: 'Marvell (88E1510)'}",
        r"{vendor: ' a|b {c} \d/x '}",
        r"{ID_MODEL: 'a|b\x20'}",
    ],
)
def test_text_that_a_value_may_contain_is_accepted(read: Read, selection: str) -> None:
    assert read(file(f"name: a.b/c, where: {selection}")).resources


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ("{vender: x}", 'resources[0].where: backend card has no attribute "vender" (did you mean vendor?)'),
        ("{vendor.qq: x}", 'backend card has no attribute "vendor.qq" (known attributes: '),
        (
            "{qqqqqq: x}",
            "(known attributes: ID_*, address, afuId, driver, idVendor, kind, links, modes, numaNode, pKey, "
            "path, sysattr.*, vendor, virtual)",
        ),
        ("{kind: vfs}", 'kind: "vfs" is none of the values that this attribute can have (did you mean vf?)'),
        ("{kind: VF}", "(did you mean vf?)"),
        (
            "{kind: [vf, bridge]}",
            'where.kind[1]: "bridge" is none of the values that this attribute can have',
        ),
        ("{kind: bridge}", "(known values: pf, vf)"),
        ("{kind: 'x*'}", 'the pattern "x*" matches none of the values that this attribute can have'),
        ("{not: {kind: vfs}}", 'where.not.kind: "vfs" is none of the values'),
        *(
            (f"{{path: {path}}}", 'where.path: a path has no end "/" and no part "", "." or "..",')
            for path in ("/dev/fuse/", "/dev//fuse", "/dev/./fuse", "/dev/x/../fuse", "/dev/", "/dev/*/")
        ),
        ("{path: dev/b}", 'where.path: every value of this attribute begins with /dev/, "dev/b" does not'),
        ("{path: dev/b}", '(write "/dev/b")'),
        ("{path: b*}", '(write "/dev/b*")'),
        ("{path: ^/dev/b$}", '"^/dev/b$" is a regular expression; a pattern is a glob for the whole value'),
        ("{path: ^/dev/b$}", '(write "/dev/b")'),
        ("{path: '^/dev/b.*'}", '(write "/dev/b*")'),
        ("{path: ^dev/b$}", '(write "/dev/b")'),
        ("{path: '/dev/b[0-9]$'}", '(write "/dev/b[0-9]")'),
        (
            "{path: '/dev/tty(USB0|ACM*)'}",
            'no value of this attribute contains |, "/dev/tty(USB0|ACM*)" does',
        ),
        ("{path: '/dev/tty(USB0|ACM*)'}", '(write ["/dev/ttyUSB0", "/dev/ttyACM*"])'),
        ("{path: '/dev/{a,b}'}", 'contains {, "/dev/{a,b}" does (write ["/dev/a", "/dev/b"])'),
        (r"{path: '/dev/ttyUSB\d'}", '(write "/dev/ttyUSB[0-9]")'),
        ("{path: '/dev/b '}", "where.path: no value of this attribute begins or ends with white space"),
        ("{path: ' /dev/b'}", '(write "/dev/b")'),
        ("{path: ' '}", "begins or ends with white space"),
        ("{path: /sys/class/tty/x}", 'begins with /dev/, "/sys/class/tty/x" does not'),
        ("{driver: 'mlx5_core|vfio-pci'}", '(write ["mlx5_core", "vfio-pci"])'),
        ("{driver: /dev/x}", 'no value of this attribute contains /, "/dev/x" does (write "x")'),
        ("{driver: 'nvme '}", '(write "nvme")'),
        ("{idVendor: '1a86|0403'}", '(write ["1a86", "0403"])'),
        ("{idVendor: ' 1a86'}", '(write "1a86")'),
        *(
            (f"{{address: '{odd}'}}", f'"{odd}" is no PCI address with domain and function (write "{fixed}")')
            for odd, fixed in (
                ("3b:00.0", "0000:3b:00.0"),
                ("3b:00", "0000:3b:00.*"),
                ("0000:3b:00", "0000:3b:00.*"),
                ("3b:00.?", "0000:3b:00.?"),
            )
        ),
        ("{address: quick}", '"quick" is no PCI address with domain and function'),
        ("{not: {path: [/dev/a, /b]}}", "where.not.path[1]: every value of this attribute begins with /dev/"),
        ("{idVendor: ^1a86}", '(write "1a86")'),
        ("{vendor: ^intel$}", '(write "intel")'),
        ("{modes: quick}", 'where.modes: "quick" is none of the values'),
        ("{ID_: x}", 'has no attribute "ID_"'),
        ("{ID_*: x}", 'has no attribute "ID_*"'),
        ("{any: [{vendor: x}]}", "a list of blocks means any of them"),
        ("{idVendor: 0403}", 'must be text, not the number 0403 (put it in quotes: "0403")'),
        ("{idVendor: 7523}", 'must be text, not the number 7523 (put it in quotes: "7523")'),
        ("{idVendor: 12:34}", 'must be text, not the number 12:34 (put it in quotes: "12:34")'),
        ("{idVendor: 1.5}", 'must be text, not the number 1.5 (put it in quotes: "1.5")'),
        ("{vendor: no}", 'must be text, not no, which YAML reads as true or false (put it in quotes: "no")'),
        ("{vendor: 2024-01-01}", "must be text, not the date 2024-01-01"),
        ("{idVendor: '0x1a86'}", "(leave out the 0x)"),
        ("{idVendor: 1a8g}", '"1a8g" is no id of four hexadecimal digits (an example is "1a86")'),
        ("{idVendor: a86}", 'ids of this attribute have four digits, "a86" has 3 (write "0a86")'),
        ("{idVendor: 1a867523}", 'ids of this attribute have four digits, "1a867523" has 8'),
        ("{path: '/dev/ttyUSB[0-9'}", 'the [ in "/dev/ttyUSB[0-9" has no ] (write "/dev/ttyUSB[0-9]")'),
        ("{path: '/dev/a[]b'}", 'the [ in "/dev/a[]b" has no ]'),
        ("{pKey: '7fff'}", 'the ids of this attribute begin with 0x, "7fff" does not (write "0x7fff")'),
        (
            "{afuId: D8424DC4-A4A3-C413-F89E-433683F9040B}",
            '(write "D8424DC4A4A3C413F89E433683F9040B")',
        ),
        ("{vendor: ''}", "empty text matches no device"),
        ("{vendor: }", "must be text, not an empty value"),
        ("{vendor: []}", "resources[0].where.vendor: an empty list can never match"),
        ("{vendor: {a: b}}", "must be one value or a list of values, not a mapping"),
        (
            "{vendor: [[a]]}",
            "resources[0].where.vendor[0]: must be one value or a list of values, not a list",
        ),
        ("{virtual: yes}", "(write true)"),
        ("{virtual: 1}", "must be true or false, not the number 1"),
        ("{numaNode: 010}", "(write it in plain decimals"),
        ("{numaNode: -1}", "if the kernel reports -1, the device has no such attribute"),
        ("{numaNode: true}", "must be a whole number, not the value true"),
        ("{numaNode: 3-1}", 'the range "3-1" is empty (turn it round: "1-3")'),
        ("{numaNode: '1--3'}", '"1--3" is not a range of whole numbers (write it as "0-3,6,8-")'),
        ("{numaNode: '1 3'}", "is not a range"),
        ("{numaNode: ''}", "is not a range"),
        ("{numaNode: '-'}", "is not a range"),
        ("{numaNode: '1,'}", "is not a range"),
        ("{numaNode: all}", "is not a range"),
        ("{numaNode: '" + "9" * 30 + "'}", "is not a range"),
        ("[]", "an empty list can never match (remove the key to match every device)"),
        ("[{}]", "an empty block matches every device"),
        ("[3]", "resources[0].where[0]: must be a mapping of attributes, not the number 3"),
        ("tty", 'must be a mapping of attributes, or a list of such, not the text "tty"'),
        ("", "must be a mapping of attributes, or a list of such, not an empty value"),
        ("{not: {}}", "resources[0].where.not: an empty block refuses every device"),
        ("{not: []}", "an empty list can never match"),
        ("{not: x}", "must be a mapping of attributes"),
        ("{not: [{vender: x}]}", "resources[0].where.not[0]: backend card has no attribute"),
    ],
)
def test_a_where_that_cannot_be_meant_is_refused(complaints: Complain, selection: str, said: str) -> None:
    found = [str(complaint) for complaint in complaints(file(f"name: a.b/c, where: {selection}"))]
    assert any(said in line for line in found), found


@pytest.mark.parametrize("name", ["vendor", "numaNode", "virtual", "ID_BUS"])
@pytest.mark.parametrize(
    ("body", "key"),
    [
        ("where: {%s}", "where"),
        ("where: [{path: /dev/a}, {%s}]", "where[1]"),
        ("where: {path: /dev/a, not: {%s}}", "where.not"),
        ("healthyWhile: {%s}", "healthyWhile"),
        ("share: {replicas: 2, overrides: [{where: {%s}, replicas: 3}]}", "share.overrides[0].where"),
    ],
)
def test_a_set_of_names_is_no_condition(complaints: Complain, body: str, key: str, name: str) -> None:
    (found,) = map(str, complaints(file(f"name: a.b/c, {body % name}")))
    assert f"resources[0].{key}.{name}: must be " in found
    assert "not an empty value (give it a value or remove the key)" in found


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("where: {}", "resources[0]: the key name is required (for example name: example.com/serial)"),
        ("name: serial", 'resources[0].name: "serial" has no slash'),
        ("name: kubernetes.io/x", "is in kubernetes.io"),
        ("name: 'a.b/" + "c" * 64 + "'", "at most 63 characters"),
        ("name: 'a.b/{vender}'", 'no attribute "vender" to name resources after (did you mean vendor?)'),
        ("name: 'a.b/{ID_*}'", 'no attribute "ID_*"'),
        ("name: 'a.b/{x'", "has a brace without its partner"),
        ("name: ''", "has no slash"),
        ("name: a.b/c, prefer: packed", "(did you mean pack?)"),
        ("name: a.b/c, inject: files", "must be one of direct, cdi"),
        ("name: a.b/c, whenEmpty: never", "must be one of wait, register"),
        ("name: a.b/c, when_empty: wait", "(did you mean whenEmpty?)"),
        ("name: a.b/c, exclusive: no", "(write false)"),
        ("name: a.b/c, topology: no", "topology: must be true or false"),
        ("name: a.b/c, topolgy: false", "(did you mean topology?)"),
        ("name: a.b/c, healthywhile: {vendor: x}", "(did you mean healthyWhile?)"),
        ("name: a.b/c, expect: eight", 'resources[0].expect: "eight" is not a range of whole numbers'),
        ("name: a.b/c, expect: 8-4", 'resources[0].expect: the range "8-4" is empty'),
        ("name: a.b/c, expect: -1", 'resources[0].expect: must be 0 or more, not -1 (for at most 1: "0-1")'),
        *(
            (
                f"name: a.b/c, expect: {odd}",
                f"resources[0].expect: must be a whole number or a range of them, not {what} "
                '(write it as 8, "4-8" or "1-")',
            )
            for odd, what in (("[8]", "a list"), ("1.5", "the number 1.5"), ("true", "the value true"))
        ),
        ("name: a.b/c, expects: 8", "(did you mean expect?)"),
        ("name: a.b/c, healthyWhile: operational", "healthyWhile: must be a mapping of attributes"),
        ("name: a.b/c, healthyWhile: []", "healthyWhile: an empty list can never match"),
        ("name: a.b/c, healthyWhile: {vender: x}", '"vender" (did you mean vendor?)'),
        ("name: a.b/c, healthyWhile: {numaNode: x}", 'healthyWhile.numaNode: "x" is not a range'),
        ("name: a.b/c, permissions: rx", 'permissions: must be r, w or rw, with or without m, not "rx"'),
        ("name: a.b/c, permissions: m", 'must be r, w or rw, with or without m, not "m"'),
        ("name: a.b/c, permissions: rwr", 'must be r, w or rw, with or without m, not "rwr"'),
        ("name: a.b/c, permissions: ''", 'must be r, w or rw, with or without m, not ""'),
        ("name: a.b/c, permissions: 666", "must be r, w or rw, with or without m, not the number 666"),
        ("name: a.b/c, permissions: [r, w]", "permissions: must be text, not a list"),
        ("name: a.b/c, replicas: 3", 'unknown key "replicas" (it belongs to share: share: {replicas: …})'),
        ("name: a.b/c, mounts: []", 'unknown key "mounts" (it belongs to give: give: {mounts: …})'),
        ("name: a.b/c, class: x", 'unknown key "class" (it belongs to dra: dra: {class: …})'),
        ("name: a.b/c, share: 3", "share: must be a mapping, not the number 3 (write {replicas: 3})"),
        ("name: a.b/c, permision: rw", "(did you mean permissions?)"),
        ("name: a.b/c, share: {maxPerContaner: 1}", "(did you mean maxPerContainer?)"),
        ("name: a.b/c, share: {maxPerContainer: 0}", "maxPerContainer: must be from 1 to 100000, not 0"),
        ("name: a.b/c, share: {maxPerContainer: '1'}", "must be a whole number, not the text"),
        ("name: a.b/c, share: 3", "share: must be a mapping, not the number 3"),
        ("name: a.b/c, share: {replicas: 0}", "share.replicas: must be from 1 to 100000, not 0"),
        ("name: a.b/c, share: {replicas: -1}", "must be from 1 to 100000, not -1"),
        ("name: a.b/c, share: {replicas: 100001}", "must be from 1 to 100000, not 100001"),
        ("name: a.b/c, share: {replicas: '3'}", "(remove the quotes)"),
        ("name: a.b/c, share: {replicas: 1.5}", "must be a whole number"),
        ("name: a.b/c, share: {count: 3}", 'unknown key "count"'),
        (
            "name: a.b/c, share: {of: every}",
            'share.of: must be one of each, all, or an attribute of backend card, not "every"',
        ),
        ("name: a.b/c, share: {of: al}", "(did you mean all?)"),
        ("name: a.b/c, share: {of: vendr}", "(did you mean vendor?)"),
        ("name: a.b/c, share: {of: links}", 'share.of: "links" is a list, and the id of a unit is one value'),
        ("name: 'a.b/{vendor}', nameMap: {x: 'y z'}", "nameMap.x: must be at most 63 letters, digits"),
        ("name: 'a.b/{vendor}', nameMap: [x]", "nameMap: must be a mapping"),
        ("name: a.b/c, share: {members: 2}", "share.members: has no effect with of: each"),
        ("name: a.b/c, share: {of: all, members: 2}", "share.members: has no effect with of: all"),
        ("name: a.b/c, share: {of: vendor, members: 0}", "share.members: must be from 1 to 1024, not 0"),
        ("name: a.b/c, share: {of: vendor, members: 1025}", "must be from 1 to 1024, not 1025"),
        (
            "name: a.b/c, share: {of: all, overrides: [{where: {vendor: x}, replicas: 3}]}",
            "share.overrides: has no effect with of: all, which counts all devices together",
        ),
        ("name: a.b/c, share: {overrides: [{replicas: 3}]}", "share.overrides[0]: the key where is required"),
        (
            "name: a.b/c, share: {overrides: [{where: {x: 1}, replicas: 3}]}",
            "share.overrides[0].where: backend card",
        ),
    ],
)
def test_a_wrong_entry_is_refused(complaints: Complain, body: str, said: str) -> None:
    found = [str(complaint) for complaint in complaints(file(body))]
    assert any(said in line for line in found), found


def test_one_wrong_key_does_not_hide_the_others(complaints: Complain) -> None:
    text = file("name: bad, prefer: bad, where: {bad: 1}, share: {replicas: bad}, bad: 1")
    assert len(complaints(text)) == 5


def test_an_entry_that_is_no_mapping_is_refused(complaints: Complain) -> None:
    (found,) = complaints("version: 1\nresources: [tty]")
    hint = "write {name: example.com/serial, backend: udev}"
    assert str(found) == f'f.yaml:2:13: resources[0]: must be a mapping, not the text "tty" ({hint})'


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("crad", "did you mean card?"),
        ("gpu", "install the package devhost-gpu"),
        ("broken", "plugin devhost-broken was refused: ImportError: libbroken.so is not there"),
        ("zzzzzz", "known backends: card, other"),
    ],
)
def test_a_missing_backend_is_refused_with_the_way_to_get_it(
    complaints: Complain, name: str, hint: str
) -> None:
    (needed,) = complaints(f"version: 1\nresources: [{{name: a.b/c, backend: {name}}}]")
    (configured,) = complaints(f"version: 1\nresources: []\nbackends: {{{name}: {{}}}}")
    assert needed.path == "resources[0].backend"
    assert configured.path == f"backends.{name}"
    assert needed.hint == configured.hint == hint


def test_a_needed_backend_gets_its_default_options(read: Read) -> None:
    found = read(file("name: a.b/c"))
    assert getattr(found.backends["card"], "level") == "low"  # noqa: B009 - typed as object


def test_a_needed_backend_whose_options_must_be_given_is_refused_without(complaints: Complain) -> None:
    (found,) = complaints("version: 1\nresources:\n- {name: a.b/c, backend: other}")
    assert str(found).endswith("backends.other: the key token is required (for example token: abc)")
    assert found.line == 3


def test_a_second_entry_of_one_name_is_refused_with_the_line_of_the_first(complaints: Complain) -> None:
    text = file("name: a.b/c, where: {vendor: x}", "name: a.b/c, where: {vendor: y}")
    (found,) = complaints(text)
    assert (found.line, found.path) == (4, "resources[1].name")
    assert '"a.b/c" is already offered by the entry in line 3' in found.message


def test_a_template_may_appear_twice(read: Read) -> None:
    text = file("name: 'a.b/{vendor}', where: {vendor: x}", "name: 'a.b/{vendor}', where: {vendor: y}")
    assert len(read(text).resources) == 2


@pytest.mark.parametrize(
    "entries",
    [
        ("name: a.b/1", "name: a.b/2, where: {vendor: x}"),
        ("name: a.b/1, where: {vendor: '*'}", "name: a.b/2, where: {vendor: x, virtual: true}"),
        ("name: a.b/1, where: {numaNode: 0-7}", "name: a.b/2, where: {numaNode: '1,3-4'}"),
        ("name: a.b/1, where: [{vendor: x}, {vendor: y}]", "name: a.b/2, where: {vendor: [y]}"),
        ("name: 'a.b/{vendor}'", "name: a.b/2, where: {vendor: x}"),
        ("name: 'a.b/{vendor}'", "name: 'a.b/2-{vendor}'"),
        ("name: a.b/1, exclusive: false", "name: a.b/2, where: {vendor: x}"),
        ("name: a.b/1", "name: a.b/2, exclusive: false"),
    ],
)
def test_an_entry_that_can_never_get_a_device_is_refused(
    complaints: Complain, entries: tuple[str, str]
) -> None:
    (found,) = complaints(file(*entries))
    assert (found.line, found.path) == (4, "resources[1]")
    assert "can never get a device: the entry in line 3 takes them all first" in found.message


def test_two_entries_may_hide_a_third_together(complaints: Complain) -> None:
    text = file(
        "name: a.b/1, where: {vendor: x}",
        "name: a.b/2, where: {vendor: y}",
        "name: a.b/3, where: [{vendor: x}, {vendor: y}]",
    )
    (found,) = complaints(text)
    assert "the entries in lines 3, 4 take them all first" in found.message


@pytest.mark.parametrize(
    "entries",
    [
        ("name: a.b/1, where: {vendor: x}", "name: a.b/2"),
        ("name: a.b/1, exclusive: false", "name: a.b/2, exclusive: false"),
        ("name: a.b/1, where: {vendor: x}", "name: a.b/2, where: {not: {vendor: x}}"),
        ("name: 'a.b/{vendor}'", "name: a.b/2, where: {virtual: true}"),
        ("name: 'a.b/{vendor}'", "name: a.b/2"),
        ("name: a.b/1, where: {not: {vendor: x}}", "name: a.b/2, where: {vendor: x}"),
    ],
)
def test_an_entry_that_may_get_a_device_is_kept(read: Read, entries: tuple[str, str]) -> None:
    assert len(read(file(*entries)).resources) == 2


def test_an_entry_of_another_backend_hides_nothing(read: Read) -> None:
    text = file("name: a.b/1") + "- {backend: other, name: a.b/2}\nbackends: {other: {token: x}}"
    assert len(read(text).resources) == 2


def test_the_longest_family_declares_an_attribute() -> None:
    usb, any_id = Attribute(str, "usb", "x"), Attribute(str, "any", "x")
    attributes = {"ID_*": any_id, "ID_USB_*": usb, "ID": any_id}
    assert declared(attributes, "ID_USB_MODEL") is usb
    assert declared(attributes, "ID_MODEL") is any_id
    assert declared(attributes, "ID_USB_*") is None
    assert declared(attributes, "MODEL") is None


numbers = st.integers(0, 40)
spans = st.one_of(
    numbers.map(str),
    st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}"),
    numbers.map(lambda low: f"{low}-"),
    numbers.map(lambda high: f"-{high}"),
)


def _contains(span: str, number: int) -> bool:
    low, dash, high = span.partition("-")
    if not dash:
        return number == int(low)
    return int(low or 0) <= number <= int(high or 10**6)


@given(st.lists(spans, min_size=1, max_size=5), numbers)
def test_a_range_takes_exactly_the_numbers_it_names(written: list[str], number: int) -> None:
    text = '{numaNode: "' + ",".join(written) + '"}'
    complaints = Diagnostics("f")
    attributes = {"numaNode": Attribute(int, "node", 0)}
    found = read_where(parse(text.encode(), complaints), "card", attributes, KeyPath(complaints))
    assert complaints.found == []
    assert where.holds(found, {"numaNode": number}) == any(_contains(span, number) for span in written)


def test_an_optional_entry_without_an_installed_backend_is_skipped(read: Read) -> None:
    settings = read(
        "version: 1\nbackends: {gpu: {driverRoot: /run/nvidia/driver}}\nresources:\n"
        "- {name: nvidia.com/gpu, backend: gpu, where: {vendor: nvidia}, optional: true}\n"
        "- {name: 'nvidia.com/mig-{profile}', backend: gpu, firmware: true, optional: true}\n"
        "- {name: a.b/c, backend: card}\n"
    )
    assert [(entry.index, entry.name) for entry in settings.resources] == [(2, "a.b/c")]
    found = [(entry.index, entry.name, entry.backend) for entry in settings.skipped]
    assert found == [(0, "nvidia.com/gpu", "gpu"), (1, "nvidia.com/mig-{profile}", "gpu")]
    assert settings.not_installed() == {"gpu": "install the package devhost-gpu"}
    assert settings.backends.keys() == {"card"}


@pytest.mark.parametrize(
    ("entry", "message", "hint"),
    [
        ("backend: gpu", 'backend "gpu" is not installed', "install the package devhost-gpu"),
        (
            "backend: gpu, optional: false",
            'backend "gpu" is not installed',
            "install the package devhost-gpu",
        ),
        ("backend: crad, optional: true", 'backend "crad" is not installed', "did you mean card?"),
        ("backend: broken, optional: true", 'backend "broken" is not installed', "plugin devhost-broken was"),
        ("backend: gpu, optional: true, name: fuse", '"fuse" has no slash', "for example"),
    ],
)
def test_optional_hides_no_other_fault(complaints: Complain, entry: str, message: str, hint: str) -> None:
    name = "" if "name:" in entry else "name: a.b/c, "
    (found,) = complaints(f"version: 1\nresources:\n- {{{name}{entry}}}\n")
    assert message in found.message
    assert found.hint.startswith(hint)


def test_a_skipped_entry_takes_its_name(complaints: Complain) -> None:
    entries = "- {name: a.b/c, backend: gpu, optional: true}\n- {name: a.b/c, backend: card}\n"
    text = f"version: 1\nresources:\n{entries}"
    (found,) = complaints(text)
    assert "already offered by the entry in line 3" in found.message


def test_a_name_map_without_a_template_is_refused(complaints: Complain) -> None:
    (found,) = complaints(file("name: a.b/c, nameMap: {x: y}"))
    assert str(found).endswith(
        "resources[0].nameMap: has no effect: the name has no attribute in braces (remove it)"
    )
