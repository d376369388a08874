"""CDI specifications: what edits become, under which names, and how the files come and go."""

from __future__ import annotations

import json
import os
import re
import stat
import string
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from devhost_testing import runtime
from hypothesis import given
from hypothesis import strategies as st

from devhost.allocation.cdi import spec
from devhost.backend.errors import AllocationError, BackendError
from devhost.backend.model import DeviceNode, Edits, Mount
from devhost.discovery.runner import checked_edits
from devhost.kubelet.server import container_response
from devhost.planning import naming

SCHEMA = json.loads((Path(__file__).parent / "cdi.schema.json").read_text(encoding="utf-8"))


@cache
def validator() -> jsonschema.protocols.Validator:
    """For the schema, which is checked once: that takes longer than a document."""
    kind = jsonschema.validators.validator_for(SCHEMA)
    kind.check_schema(SCHEMA)
    return kind(SCHEMA)


def check(document: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses what a loader would: wrong shape, wrong names, one name twice, too low or high a version."""
    validator().validate(document)
    text = spec.dumps(document)
    assert json.loads(text) == document
    assert runtime.load(text) == document
    assert document["cdiVersion"] == runtime.least_version(document)
    return dict(document)


def look(path: str) -> spec.HostNode:
    return spec.HostNode(path, "c", 226, 7, 0o660, 0, 44)


def render(edits: Edits) -> spec.ContainerEdits:
    return spec.container_edits(edits, look)


FULL = Edits(
    nodes=(DeviceNode("/dev/fuse", permissions="rwm"), DeviceNode("/dev/host0", "/dev/card", "r")),
    mounts=(Mount("/opt/lib", "/usr/lib/card"), Mount("/var/spool", "/spool", read_only=False)),
    env={"CARD": "0", "EMPTY": "", "ODD": "a=b\nc"},
    annotations={"example.com/card": "0"},
)


def test_every_part_of_the_edits_that_cdi_can_carry_is_rendered():
    assert render(FULL) == {
        "env": ["CARD=0", "EMPTY=", "ODD=a=b\nc"],
        "deviceNodes": [
            {
                "path": "/dev/fuse",
                "type": "c",
                "major": 226,
                "minor": 7,
                "permissions": "rwm",
                "fileMode": 0o660,
                "uid": 0,
                "gid": 44,
            },
            {
                "path": "/dev/card",
                "hostPath": "/dev/host0",
                "type": "c",
                "major": 226,
                "minor": 7,
                "permissions": "r",
                "fileMode": 0o660,
                "uid": 0,
                "gid": 44,
            },
        ],
        "mounts": [
            {
                "hostPath": "/opt/lib",
                "containerPath": "/usr/lib/card",
                "options": ["rbind", "rprivate", "ro"],
            },
            {"hostPath": "/var/spool", "containerPath": "/spool", "options": ["rbind", "rprivate", "rw"]},
        ],
    }


def test_optional_parts_the_host_lacks_are_left_out_of_both_renderings():
    left_out = {"/dev/host0", "/opt/lib"}
    found = spec.container_edits(FULL, look, left_out)
    direct = container_response(FULL, left_out)
    assert [node["path"] for node in found["deviceNodes"]] == [d.container_path for d in direct.devices]
    assert [m["containerPath"] for m in found["mounts"]] == [m.container_path for m in direct.mounts]


names = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=6)
paths = st.lists(names, min_size=1, max_size=3).map(lambda parts: f"/{'/'.join(parts)}")
permissions = st.sampled_from(["r", "w", "m", "rw", "rm", "wm", "rwm"])
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
any_edits = st.builds(
    Edits,
    nodes=st.lists(st.builds(DeviceNode, paths, st.just("") | paths, permissions), max_size=4).map(tuple),
    mounts=st.lists(st.builds(Mount, paths, paths, st.booleans()), max_size=4).map(tuple),
    env=st.dictionaries(words.filter(lambda name: name and "=" not in name), words, max_size=4),
)
any_id = st.text(
    st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1, max_size=63
).filter(lambda device: "::" not in device)
any_resource = st.from_regex(
    r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?){0,3}"
    r"/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?",
    fullmatch=True,
).filter(lambda name: naming.problem(name) == "")


@pytest.mark.conformance(52)
@given(any_resource, st.lists(st.tuples(any_id, any_edits), max_size=6, unique_by=lambda pair: pair[0]))
def test_every_document_obeys_the_rules_of_the_specification(resource, contents):
    devices = {device: rendered for device, edits in contents if (rendered := render(Edits.merge([edits])))}
    if devices:
        named = {spec.device_name(device): edits for device, edits in devices.items()}
        named[spec.set_name(devices)] = next(iter(devices.values()))
        assert len(named) == len(devices) + 1
        kind = spec.kind(resource)
        for name in named:
            assert "/".join(runtime.parse(f"{kind}={name}")[:2]) == kind
        check(spec.document(kind, named))


@given(st.lists(any_resource, unique=True), st.lists(any_id, unique=True))
def test_names_never_collide(resources, devices):
    assert len({spec.kind(resource) for resource in resources}) == len(resources)
    assert len({spec.device_name(device) for device in devices}) == len(devices)
    assert not any(spec.is_set(spec.device_name(device)) for device in devices)


NODE = {"path": "/dev/a"}


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ({}, "0.3.0"),
        (
            {"devices.containerEdits.mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "none"}]},
            "0.4.0",
        ),
        (
            {"containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "none"}]}},
            "0.4.0",
        ),
        ({"devices.containerEdits.deviceNodes": [{**NODE, "hostPath": "/dev/b"}]}, "0.5.0"),
        ({"containerEdits": {"deviceNodes": [{**NODE, "hostPath": "/dev/b"}]}}, "0.5.0"),
        ({"devices.name": "0"}, "0.5.0"),
        ({"kind": "a.b/c.d"}, "0.6.0"),
        ({"annotations": {"a": "b"}}, "0.6.0"),
        ({"devices.annotations": {"a": "b"}}, "0.6.0"),
        ({"devices.containerEdits.intelRdt": {}}, "0.7.0"),
        ({"devices.containerEdits.additionalGids": [1]}, "0.7.0"),
        ({"containerEdits": {"additionalGids": [1]}}, "0.7.0"),
        ({"devices.containerEdits.intelRdt": {"schemata": ["L3:0=f"]}}, "1.1.0"),
        ({"devices.containerEdits.intelRdt": {"enableMonitoring": True}}, "1.1.0"),
        ({"devices.containerEdits.netDevices": [{"hostInterfaceName": "a", "name": "b"}]}, "1.1.0"),
    ],
)
def test_the_model_of_a_loader_knows_since_when_there_is_what(change, version):
    device: dict[str, Any] = {"name": "a", "containerEdits": {"deviceNodes": [NODE]}}
    document: dict[str, Any] = {"cdiVersion": version, "kind": "a.b/c", "devices": [device]}
    for place, value in change.items():
        *above, key = place.split(".")
        into = document if not above else device if len(above) == 1 else device["containerEdits"]
        into[key] = value
    validator().validate(document)
    assert runtime.least_version(document) == version
    assert runtime.load(json.dumps(document)) == document
    for other in runtime.VERSIONS[: runtime.VERSIONS.index(version)]:
        with pytest.raises(runtime.Refused, match=f"at least {version}"):
            runtime.load(json.dumps({**document, "cdiVersion": other}))


def one(edits: object, name: str = "a", version: str = "0.3.0", kind: str = "a.b/c") -> dict[str, Any]:
    return {"cdiVersion": version, "kind": kind, "devices": [{"name": name, "containerEdits": edits}]}


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        one({}),
        one([]),
        one({"env": ["A"]}),
        one({"env": ["=a"]}),
        one({"nodes": []}),
        one({"deviceNodes": [{"path": ""}]}),
        one({"deviceNodes": [{"path": "/dev/a", "permissions": "x"}]}),
        one({"mounts": [{"hostPath": "/a"}]}),
        one({"env": ["A="]}, name="-"),
        one({"env": ["A="]}, version="0.2.0"),
        one({"env": ["A="]}, kind="a.b"),
        one({"env": ["A="]}, kind="3.b/c"),
        one({"env": ["A="]}) | {"devices": []},
        one({"env": ["A="]}) | {"more": 1},
    ],
)
def test_schema_and_model_of_a_loader_refuse_the_same(document):
    with pytest.raises(runtime.Refused):
        runtime.load(json.dumps(document))
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(document)


def test_what_devhost_renders_is_all_that_ever_asks_for_a_version():
    """Of all keys that are younger than 0.3.0 it writes hostPath alone, and no annotations at all."""
    edits = replace(FULL, annotations={"a": "b"}, cdi_devices=("a.b/c=d",))
    rendered = render(edits)
    assert rendered.keys() == {"env", "deviceNodes", "mounts"}
    assert {key for node in rendered["deviceNodes"] for key in node} == {
        *("path", "hostPath", "type", "major", "minor"),
        *("permissions", "fileMode", "uid", "gid"),
    }
    assert {key for mount in rendered["mounts"] for key in mount} == {"hostPath", "containerPath", "options"}
    assert spec.document("a.b/c", {"d": rendered}).keys() == {"cdiVersion", "kind", "devices"}


@pytest.mark.parametrize(
    "value", ["\U0001f600", "\x7f", "\x85", "\u2028", "\ufeff", "\uffff", "\\ud83d", "\t\b\\"]
)
def test_a_file_is_yaml_as_well_as_json(value):
    """Loaders read YAML, in which one character that is escaped in two halves costs the whole file."""
    check(spec.document("a.b/c", {"d": render(Edits(env={"A": value}))}))


@pytest.mark.parametrize(
    ("resource", "device", "edits", "version"),
    [
        ("example.com/card", "a0", Edits(nodes=(DeviceNode("/dev/x"),), mounts=FULL.mounts), "0.3.0"),
        ("example.com/card", "0000:3b:00.0", Edits(nodes=(DeviceNode("/dev/x"),)), "0.5.0"),
        ("example.com/card", "a0", Edits(nodes=(DeviceNode("/dev/x", "/dev/y"),)), "0.5.0"),
        ("example.com/mig-1g.5gb", "a0", Edits(env={"A": "b"}), "0.6.0"),
    ],
)
def test_the_version_is_the_lowest_that_has_what_is_used(resource, device, edits, version):
    document = spec.document(spec.kind(resource), {spec.device_name(device): render(edits)})
    assert check(document)["cdiVersion"] == version


def test_the_example_in_the_documentation_is_one_devhost_would_write():
    page = Path(__file__).parents[2] / "docs" / "cdi.md"
    (example,) = re.findall(r"(?ms)^```json\n(.*?)^```$", page.read_text(encoding="utf-8"))
    assert spec.dumps(check(json.loads(example))) == example


@pytest.mark.parametrize(
    ("resource", "kind"),
    [
        ("example.com/card", "devhost.example.com/card"),
        ("3com.com/card", "devhost.3com.com/card"),
        ("rdma/hca", "devhost.rdma/hca"),
        ("example.com/mig-1g.5gb", "devhost.example.com/mig-1g.5gb"),
    ],
)
def test_the_kind_is_the_name_of_the_resource_in_a_domain_of_devhosts_own(resource, kind):
    """The vendor of the hardware may describe the same devices under the name itself."""
    assert spec.kind(resource) == kind
    assert spec.kind(resource, "devhost-0123abcd") == kind.replace("devhost", "devhost-0123abcd")


def test_a_resource_name_that_cdi_refuses_becomes_a_valid_and_unique_kind():
    names = [
        "3com.com/card",
        "x3com.com/card",
        "3com.com/40g",
        "a.b/40g",
        "a.b/x40g",
        f"{'0' * 244}/{'1' * 63}",
    ]
    kinds = [spec.kind(name) for name in names]
    assert len(set(kinds)) == len(names)
    for kind in kinds:
        check(spec.document(kind, {"d": {"env": ["A=b"]}}))


def test_two_devices_never_share_a_name():
    ids = ["a/b", "a-b", "a+b", "a@b", "a#b", "a=b", "a.", "a", "a-", "0000:3b:00.0", "+", "-", "x::1234abcd"]
    names = [spec.device_name(device) for device in ids]
    assert len(set(names)) == len(ids)
    assert all(runtime.parse(f"a/b={name}") for name in names)
    assert spec.device_name("0000:3b:00.0") == "0000:3b:00.0"


def test_a_set_of_devices_has_one_name_in_any_order():
    assert spec.set_name(["a", "b"]) == spec.set_name(["b", "a"]) != spec.set_name(["a", "b", "c"])
    assert spec.is_set(spec.set_name(["a", "b"]))
    assert not spec.is_set(spec.device_name("set/0"))


def test_a_node_is_looked_at_through_links_and_keeps_its_mode_and_owner(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    status = Path("/dev/null").stat()
    found = spec.host_node(str(link))
    mode = stat.S_IMODE(status.st_mode)
    path = os.path.realpath("/dev/null")
    assert found == spec.HostNode(path, "c", 1, 3, mode, status.st_uid, status.st_gid)


def test_below_another_root_a_node_has_its_path_as_the_host_sees_it(monkeypatch, tmp_path):
    (tmp_path / "dev" / "by-id").mkdir(parents=True)
    (tmp_path / "dev" / "card0").touch()
    (tmp_path / "dev" / "by-id" / "relative").symlink_to("../card0")
    (tmp_path / "dev" / "by-id" / "absolute").symlink_to("/dev/by-id/relative")
    monkeypatch.setattr(stat, "S_ISCHR", lambda mode: True)  # only root can make a device node
    for path in ("/dev/card0", "/dev/by-id/relative", "/dev/by-id/absolute"):
        assert spec.host_node(path, tmp_path).path == "/dev/card0"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file", "is not a device node, and a CDI specification carries no other files"),
        ("", "is not a device node, and a CDI specification carries no other files"),
        ("absent", "for its CDI specification: No such file or directory"),
    ],
)
def test_what_is_no_device_node_is_refused_with_its_name(tmp_path, path, reason):
    (tmp_path / "file").touch()
    with pytest.raises(AllocationError, match=reason) as error:
        spec.host_node(str(tmp_path / path))
    assert str(tmp_path / path) in str(error.value)


@pytest.mark.parametrize("text", ["\udc80", "a\0b"])
@pytest.mark.parametrize(
    "edits",
    [
        lambda text: Edits(nodes=(DeviceNode(f"/dev/{text}"),)),
        lambda text: Edits(nodes=(DeviceNode("/dev/null", f"/dev/{text}"),)),
        lambda text: Edits(mounts=(Mount(f"/{text}", "/a"),)),
        lambda text: Edits(mounts=(Mount("/a", f"/{text}"),)),
        lambda text: Edits(env={"A": text}),
        lambda text: Edits(annotations={"a": text}),
    ],
)
def test_text_that_neither_way_can_carry_is_the_backends_fault(edits, text):
    """Else one device would cost the file that names all of them."""
    with pytest.raises(BackendError, match=r"backend card answered .*(control|NUL) character"):
        checked_edits(edits(text), "backend card")
