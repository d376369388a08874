"""``devhost discover`` and ``devhost explain``: offline, without root, on a tree."""

from __future__ import annotations

import json

import pytest
from devhost_testing.trees import Tree
from kit.drop_in import drop_in


def test_discover_shows_which_resource_gets_which_device(toys):
    toys.write(
        "name: example.com/big, backend: toy, where: {model: x200}", "name: example.com/all, backend: toy"
    )
    done = toys.devhost("discover")
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:3] for line in done.stdout.splitlines()]
    assert ["example.com/big", "two", "Healthy"] in rows
    assert ["example.com/all", "one", "Healthy"] in rows
    assert "refused: two for example.com/all: entry 1 (example.com/big) already took it" in done.stdout


def test_discover_as_json_has_attributes_health_and_refusals(toys):
    toys.plug("one=x100", "broken=x100")
    toys.write("name: example.com/toy, backend: toy, where: {model: x100}, share: {replicas: 3}")
    document = json.loads(toys.devhost("discover", "--output", "json").stdout)
    (resource,) = document["resources"]
    assert [device["id"] for device in resource["devices"]] == ["broken", "one"]
    assert resource["devices"][0]["reason"] == "it is broken"
    assert resource["devices"][1]["attributes"] == {"model": "x100", "serial": "s-one"}
    assert resource["devices"][1]["replicas"] == 3
    assert resource["of"] == "each"
    assert document["refusals"] == []
    assert document["backends"][0]["state"] == "ok"


def test_discover_and_explain_show_that_devices_are_handed_out_together(toys):
    toys.write("name: example.com/toy, backend: toy, share: {replicas: 100, of: all}")
    rows = [
        line for line in toys.devhost("discover").stdout.splitlines() if line.startswith("example.com/toy")
    ]
    assert len(rows) == 2 and all(row.rstrip().endswith("100, all together") for row in rows)
    (resource,) = json.loads(toys.devhost("discover", "--output", "json").stdout)["resources"]
    assert (resource["of"], [device["replicas"] for device in resource["devices"]]) == ("all", [100, 100])
    said = toys.devhost("explain", "one").stdout
    assert "yes, it takes the device, handed out 100 times, all devices together" in said


def test_discover_and_explain_show_the_unit_of_a_device_and_why_it_is_unhealthy(toys):
    toys.plug("one=x100", "broken=x100")
    toys.write("name: example.com/toy, backend: toy, share: {of: model, members: 3}")
    (resource,) = json.loads(toys.devhost("discover", "--output", "json").stdout)["resources"]
    assert (resource["of"], {one["health"] for one in resource["devices"]}) == ("model", {"Unhealthy"})
    (row, other) = [
        line for line in toys.devhost("discover").stdout.splitlines() if line.startswith("example.com/toy")
    ]
    assert row.rstrip().endswith("it is broken; 2 of 3 members") and "1, as a member of x100" in row
    assert other.rstrip().endswith("2 of 3 members")
    said = toys.devhost("explain", "x100").stdout  # names all members
    assert said.count("yes, it takes the device, as a member of x100 (2 of 3 members)") == 2


def test_discover_and_explain_show_health_as_each_entry_sees_it(toys):
    toys.plug("one=x100", "broken=x200")
    toys.write(
        "name: example.com/toy, backend: toy, exclusive: false, healthyWhile: {model: x1*}",
        "name: example.com/any, backend: toy, exclusive: false",
    )
    failed = 'model is "x200", healthyWhile wants x1*'
    lines = [" ".join(line.split()) for line in toys.devhost("discover").stdout.splitlines()]
    assert f"example.com/toy broken Unhealthy - 1 it is broken; {failed}" in lines
    assert "example.com/any broken Unhealthy - 1 it is broken" in lines
    assert "example.com/toy one Healthy - 1" in lines
    resources = json.loads(toys.devhost("discover", "--output", "json").stdout)["resources"]
    reasons = {one["name"]: {d["id"]: d["reason"] for d in one["devices"]} for one in resources}
    assert reasons["example.com/toy"] == {"one": "", "broken": f"it is broken; {failed}"}
    assert reasons["example.com/any"] == {"one": "", "broken": "it is broken"}
    first, *rest = toys.devhost("explain", "broken").stdout.splitlines()
    assert first == "broken of backend toy: Unhealthy: it is broken"
    taken = "yes, it takes the device"
    assert f"example.com/toy (resources[0]): {taken}, and is Unhealthy there: {failed}" in rest
    assert f"example.com/any (resources[1]): {taken}" in rest


def test_discover_and_explain_show_limit_permissions_and_topology(toys):
    toys.write(
        "name: example.com/toy, backend: toy, topology: false, permissions: mrw, "
        "share: {replicas: 4, maxPerContainer: 1}"
    )
    rows = [line for line in toys.devhost("discover").stdout.splitlines() if line.startswith("example.com")]
    assert len(rows) == 2 and all(row.rstrip().endswith("4, at most 1 per container") for row in rows)
    (resource,) = json.loads(toys.devhost("discover", "--output", "json").stdout)["resources"]
    assert (resource["topology"], resource["maxPerContainer"], resource["permissions"]) == (False, 1, "mrw")
    assert (
        "yes, it takes the device, handed out 4 times, at most 1 per container, device nodes with "
        "permissions mrw, NUMA nodes not sent to the kubelet"
    ) in toys.devhost("explain", "one").stdout


def test_discover_counts_devices_without_resource_and_lists_them_on_request(toys):
    toys.write("name: example.com/big, backend: toy, where: {model: x200}")
    assert "1 device matches no resource" in toys.devhost("discover").stdout
    assert "serial=s-one" in toys.devhost("discover", "--all").stdout


def test_discover_of_a_resource_shows_only_that_resource(toys):
    toys.write(
        "name: example.com/big, backend: toy, where: {model: x200}", "name: example.com/all, backend: toy"
    )
    assert "example.com/all  one" not in toys.devhost("discover", "example.com/big").stdout
    done = toys.devhost("discover", "example.com/nope")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no resource is called 'example.com/nope'" in done.stderr


def test_a_file_in_place_of_a_resource_is_refused_with_the_option_for_it(toys):
    toys.write("name: example.com/all, backend: toy")
    done = toys.devhost("discover", str(toys.config))
    assert done.returncode == 2
    assert f"run `devhost discover --config {toys.config}` to use it as the configuration" in done.stderr


def test_discover_reports_why_a_backend_failed_and_exits_with_1(toys):
    (toys.root / "toys").unlink()
    done = toys.devhost("discover")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == f"devhost: backend toy failed: {toys.root}/toys: No such file or directory"


def test_ids_are_sorted_by_the_numbers_in_them(toys):
    toys.plug("t10=x1", "t9=x1", "t2=x1", "t20=x2", "t3=x2")
    toys.write(
        "name: example.com/one, backend: toy, where: {model: x1}",
        "name: example.com/two, backend: toy, where: {serial: [s-t2, s-t9, s-t10]}",
    )
    lines = toys.devhost("discover", "--all").stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("example.com/one")] == ["t2", "t9", "t10"]
    assert [line.split()[1] for line in lines if line.startswith("refused:")] == ["t2", "t9", "t10"]
    assert [line.split()[1] for line in lines if line.startswith("toy ")] == ["t3", "t20"]
    document = json.loads(toys.devhost("discover", "--output", "json").stdout)
    assert [device["id"] for device in document["resources"][0]["devices"]] == ["t2", "t9", "t10"]


def test_explain_shows_for_every_entry_why_it_takes_the_device_or_not(toys):
    toys.write(
        "name: example.com/big, backend: toy, where: {model: x200}", "name: example.com/all, backend: toy"
    )
    lines = toys.devhost("explain", "one").stdout.splitlines()
    assert lines[0] == "one of backend toy: Healthy"
    assert "example.com/big (resources[0]): no, model must be x200, it is x100" in lines
    assert "example.com/all (resources[1]): yes, it takes the device" in lines


def test_explain_of_a_resource_shows_what_its_entries_just_miss(toys):
    toys.write(
        'name: example.com/toy, backend: toy, where: {model: x100, serial: "s-*"}',
        "name: example.com/none, backend: toy, where: {model: x300}",
    )
    done = toys.devhost("explain", "example.com/toy")
    assert done.returncode == 0, done.stderr
    line = "example.com/toy (resources[0]): 1 device; 1 more matches all but model (two: it is x200)"
    assert done.stdout.splitlines()[0] == line
    assert (
        "example.com/none (resources[1]): 0 devices; " in toys.devhost("explain", "example.com/none").stdout
    )
    shown = toys.devhost("discover").stdout.splitlines()
    assert "example.com/toy: 1 more matches all but model (two: it is x200)" in shown
    (document,) = json.loads(toys.devhost("explain", "example.com/toy", "--output", "json").stdout)
    assert (document["entry"], document["devices"]) == ("resources[0]", 1)


def test_explain_finds_a_device_by_any_attribute(toys):
    assert toys.devhost("explain", "s-two").stdout.startswith("two of backend toy")
    (document,) = json.loads(toys.devhost("explain", "s-two", "--output", "json").stdout)
    assert document["verdicts"][0]["taken"] is True


def test_explain_finds_a_device_by_a_node_that_is_only_a_claim(toys):
    assert toys.devhost("explain", "/dev/toys/two").stdout.startswith("two of backend toy")


def test_explain_finds_a_device_by_its_id_in_another_case(toys):
    toys.plug("0000:3b:00.0=x100", "0000:3c:00.0=x200")
    for text in ("0000:3B:00.0", "TOY/0000:3b:00.0"):
        done = toys.devhost("explain", text)
        assert done.stdout.startswith("0000:3b:00.0 of backend toy"), done.stderr


def test_explain_names_the_devices_whose_ids_differ_only_in_case(toys):
    toys.plug("ab=x100", "Ab=x200")
    assert toys.devhost("explain", "Ab").stdout.startswith("Ab of backend toy")
    done = toys.devhost("explain", "AB")
    assert done.returncode == 2
    assert done.stderr == "devhost: no backend has a device 'AB' (did you mean Ab or ab?)\n"


def test_explain_ignores_case_only_in_hex_attributes(toys):
    drop_in = toys.config.parent / "backends" / "toy.py"
    drop_in.write_text(drop_in.read_text().replace('"x100")', '"x100", hex=True)'))
    toys.plug("one=1a86", "two=10EE", "three=10ee")
    assert toys.devhost("explain", "1A86").stdout.startswith("one of backend toy")
    devices = json.loads(toys.devhost("explain", "10Ee", "--output", "json").stdout)
    assert sorted(document["id"] for document in devices) == ["three", "two"]
    assert toys.devhost("explain", "S-TWO").returncode == 2


def test_explain_does_not_expand_patterns(toys):
    assert toys.devhost("explain", "*").returncode == 2


def test_explain_of_an_unknown_device_suggests_similar_ones_and_exits_with_2(toys):
    done = toys.devhost("explain", "ones")
    assert done.returncode == 2
    assert done.stderr == "devhost: no backend has a device 'ones' (did you mean one?)\n"


def test_without_resources_every_device_of_every_backend_is_listed(toys):
    toys.config.write_text("version: 1\nbackendPaths: [backends]\nresources: []\n")
    done = toys.devhost("discover")
    assert (done.returncode, done.stderr) == (0, "")
    assert "serial=s-one" in done.stdout


def test_a_root_without_files_of_a_host_is_reported_if_no_device_is_found(toys):
    toys.plug()
    said = f"devhost: {toys.root} has neither sys nor dev\n"
    done = toys.devhost("discover")
    assert (done.returncode, done.stderr) == (0, said)
    (toys.root / "sys").mkdir()
    assert toys.devhost("discover").stderr == ""
    (toys.root / "sys").rmdir()
    toys.plug("one=x100")
    assert toys.devhost("discover").stderr == ""


VERBS = drop_in("""
@dataclass(frozen=True)
class Use:
    rdma: bool = option(False, "Whether RDMA nodes are handed out.")

    @property
    def uses(self):
        return {"rdma"} if self.rdma else ()


class Verbs(Plain):
    name = "verbs"
    ResourceOptions = Use

    def discover(self):
        return [Device("f0", unusable_for={"rdma": "it has no uverbs node"})]
""")


def test_discover_and_explain_show_a_device_unhealthy_only_in_resources_that_use_the_broken_part(toys):
    (toys.config.parent / "backends/verbs.py").write_text(VERBS)
    toys.write(
        "name: example.com/net, backend: verbs, exclusive: false",
        "name: example.com/rdma, backend: verbs, exclusive: false, rdma: true",
    )
    rows = [line.split()[:3] for line in toys.devhost("discover").stdout.splitlines()]
    assert ["example.com/net", "f0", "Healthy"] in rows
    assert (
        "example.com/rdma  f0      Unhealthy  -     1           it has no uverbs node"
        in toys.devhost("discover").stdout
    )
    document = json.loads(toys.devhost("discover", "--output", "json").stdout)
    found = {one["name"]: one["devices"][0] for one in document["resources"]}
    assert [(one["health"], one["reason"]) for one in found.values()] == [
        ("Healthy", ""),
        ("Unhealthy", "it has no uverbs node"),
    ]
    assert found["example.com/net"]["unusableFor"] == {"rdma": "it has no uverbs node"}
    said = toys.devhost("explain", "f0").stdout
    assert said.startswith("f0 of backend verbs: Healthy\n")
    assert "example.com/net (resources[0]): yes, it takes the device\n" in said
    reason = "yes, it takes the device, and is Unhealthy there: it has no uverbs node"
    assert f"example.com/rdma (resources[1]): {reason}\n" in said


def test_discover_lists_entries_without_matches_with_the_nearest_miss(toys):
    """Other plugins do not report which selector selects nothing, and why."""
    toys.plug("one=x100", "two=x200")
    toys.write(
        "name: example.com/toy, backend: toy, where: {model: X100, serial: '*'}",
        "name: example.com/rare, backend: toy, optional: true, where: {model: x300, serial: '*'}",
        "name: example.com/all, backend: toy, where: {serial: '*'}",
        "name: example.com/late, backend: toy, where: {model: x*}",
    )
    lines = toys.devhost("discover").stdout.splitlines()
    miss = '0 devices; 1 matches all but model ("x100", not "X100")'
    assert f"example.com/toy: {miss}" in lines
    rare = '0 devices; 2 match all but model ("x100" or "x200", not "x300")'
    assert f"example.com/rare: {rare} (optional: not on this node)" in lines
    late = "0 devices; 2 match, but resources[2] (example.com/all) took them"
    assert f"example.com/late: {late}" in lines
    assert not any(line.startswith("example.com/all: ") for line in lines)
    one = toys.devhost("discover", "example.com/rare").stdout
    assert rare in one and miss not in one
    entries = json.loads(toys.devhost("discover", "--output", "json").stdout)["entries"]
    assert [(one["entry"], one["state"], one["devices"]) for one in entries] == [
        ("resources[0]", "none", 0),
        ("resources[1]", "absent", 0),
        ("resources[2]", "served", 2),
        ("resources[3]", "none", 0),
    ]
    assert [one["reason"] for one in entries] == [miss, rare, "", late]


MISSING = """
    def missing_drivers(self):
        return [MissingDriver("0000:3b:00.0 (15b3:1021)", "no driver is bound to it (load mlx5_core)",
                              {"model": "x300"})]
"""


def without_driver(toys):
    """Adds hardware whose driver is missing, and which certainly is of model x300."""
    drop_in = toys.config.parent / "backends" / "toy.py"
    drop_in.write_text(drop_in.read_text().replace("\n\n@hookimpl", f"{MISSING}\n\n@hookimpl"))


def test_explain_of_hardware_without_its_driver_shows_what_discover_shows(toys):
    without_driver(toys)
    toys.write(
        "name: example.com/big, backend: toy, where: {model: x300}",
        "name: example.com/small, backend: toy, where: {model: x100}",
    )
    said = (
        "without driver: 0000:3b:00.0 (15b3:1021) of backend toy: no driver is bound to it (load mlx5_core)"
    )
    assert said in toys.devhost("discover").stdout
    for text in ("0000:3B:00.0", "0000:3b:00.0 (15b3:1021)", "x300"):
        done = toys.devhost("explain", text)
        assert (done.returncode, done.stdout.splitlines()[:3]) == (
            0,
            [
                said,
                "example.com/big (resources[0]): no, its driver is missing",
                "example.com/small (resources[1]): no, model must be x100, it is x300",
            ],
        )
    (document,) = json.loads(toys.devhost("explain", "x300", "--output", "json").stdout)
    assert document["hardware"] == "0000:3b:00.0 (15b3:1021)"
    assert document["verdicts"][0]["reason"] == "its driver is missing"


def test_explain_of_a_device_also_shows_what_lacks_a_driver(toys):
    """Another backend may list the same hardware, and only this line has the fix."""
    without_driver(toys)
    toys.plug("one=x300")
    toys.write("name: example.com/big, backend: toy, where: {model: x300}")
    shown = toys.devhost("explain", "x300").stdout.splitlines()
    assert shown[0] == "one of backend toy: Healthy"
    assert any(line.startswith("without driver: 0000:3b:00.0 (15b3:1021)") for line in shown)
    assert toys.devhost("explain", "3b:00.0").stdout.startswith("without driver: 0000:3b:00.0"), "no domain"


def test_explain_of_an_option_without_effect_blames_no_entry(toys):
    without_driver(toys)
    drop_in = toys.config.parent / "backends" / "toy.py"
    text = drop_in.read_text()
    drop_in.write_text(text.replace('{"model": "x300"})]', '{"model": "x300"}, makes_device=False)]'))
    toys.plug("one=x300")
    toys.write("name: example.com/big, backend: toy, where: {model: x300}")
    shown = toys.devhost("explain", "x300").stdout
    assert "\nlacking: 0000:3b:00.0 (15b3:1021) of backend toy: no driver" in shown
    assert "its driver is missing" not in shown


def test_explain_shows_why_something_that_the_kernel_knows_is_not_served(toys):
    tree = Tree(toys.root)
    tree.device("virtual/net/can0", "net", files={"type": "280"})
    tree.pci("pci0000:3a/0000:3b:00.0", driver="ixgbe", vendor="0x8086", device="0x1572")
    tree.device("pci0000:3a/0000:3b:00.0/net/eth0", "net", files={"type": "1"})
    tree.device("platform/thermal", "thermal")
    tree.node("/dev/other")
    (toys.root / "dev/dir").mkdir()
    (toys.root / "dev/dangling").symlink_to("nothing")
    (toys.root / "dev/loop").symlink_to("loop")
    for text, why in (
        ("can0", "it is a network interface (CAN), which has no device node and is not on PCI"),
        ("eth0", "it is a network interface (Ethernet) on the PCI function 0000:3b:00.0"),
        ("0000:3B:00.0", "it is a PCI function 8086:1572 with driver ixgbe"),
        ("3b:00.0", "it is a PCI function 8086:1572 with driver ixgbe"),
        ("thermal", "it is a device of class thermal without a device node"),
        ("/dev/other", "it is a device node that no backend lists"),
        ("/dev/dir", "it is a directory"),
        ("/dev/loop", "its symbolic links form a loop"),
        ("/dev/dangling", "it leads to /dev/nothing, which does not exist"),
    ):
        done = toys.devhost("explain", text)
        assert (done.returncode, done.stderr.startswith(f"devhost: {text} is not served: {why}")) == (2, True)
        assert "backends asked: toy)" in done.stderr


def test_explain_of_a_link_explains_the_node_that_it_leads_to(toys):
    (toys.root / "dev/toys").mkdir(parents=True)
    (toys.root / "dev/toys/two").touch()
    (toys.root / "dev/mine").symlink_to("toys/two")
    assert toys.devhost("explain", "/dev/mine").stdout.startswith("two of backend toy")


def test_explain_follows_a_link_that_leads_out_of_the_tree_as_a_process_on_that_node_would(toys):
    """A tree has links as the node that it was taken from has them."""
    (toys.root / "dev/toys").mkdir(parents=True)
    (toys.root / "dev/toys/two").touch()
    (toys.root / "dev/absolute").symlink_to("/dev/toys/two")
    (toys.root / "dev/upwards").symlink_to("../../../../../../../../../dev/toys/two")
    (toys.root / "dev/out").symlink_to("/etc/passwd")
    for link in ("absolute", "upwards"):
        assert toys.devhost("explain", f"/dev/{link}").stdout.startswith("two of backend toy")
    error = toys.devhost("explain", "/dev/out").stderr
    assert "/dev/out is not served: it leads to /etc/passwd, which does not exist" in error


def test_known_resources_include_those_without_devices(toys):
    toys.write(
        "name: example.com/none, backend: toy, where: {model: x9}", "name: example.com/all, backend: toy"
    )
    done = toys.devhost("discover", "example.com/nun")
    assert done.returncode == 2
    assert "known resources: example.com/all, example.com/none" in done.stderr


def test_a_long_reason_is_last_and_pads_no_other_row(toys):
    drop_in = toys.config.parent / "backends" / "toy.py"
    drop_in.write_text(drop_in.read_text().replace("it is broken", "it is broken " + "x" * 300))
    toys.plug("one=x100", "broken=x100")
    for arguments in ((), ("--all",)):
        toys.write("name: example.com/toy, backend: toy, where: {model: x%s}" % ("9" if arguments else "100"))
        lines = toys.devhost("discover", *arguments).stdout.splitlines()
        (good,) = [line for line in lines if " one " in line and "Healthy" in line]
        (bad,) = [line for line in lines if " broken " in line and "Unhealthy" in line]
        assert len(good) < 100
        assert "it is broken xxx" in bad[bad.index("Unhealthy") + 10 :]


def test_without_any_reason_the_table_has_no_column_for_reasons(toys):
    assert "REASON" not in toys.devhost("discover").stdout


@pytest.mark.usefixtures("no_installed_plugins")
def test_discover_and_explain_name_the_package_of_an_optional_entry_that_is_not_served(toys):
    gpu = "name: example.com/gpu, backend: gpu, optional: true"
    toys.write("name: example.com/toy, backend: toy", gpu)
    why = "backend gpu is not installed (install the package devhost-gpu)"
    for arguments in ((), ("example.com/gpu",)):
        done = toys.devhost("discover", *arguments)
        assert f"example.com/gpu: {why} (optional: not served)" in done.stdout.splitlines(), done.stderr
    assert "example.com/gpu" not in toys.devhost("discover", "example.com/toy").stdout
    (skipped,) = json.loads(toys.devhost("discover", "-o", "json").stdout)["skipped"]
    assert skipped == {"entry": "resources[1]", "name": "example.com/gpu", "backend": "gpu", "reason": why}
    assert f"example.com/gpu (resources[1]): {why}" in toys.devhost("explain", "example.com/gpu").stdout
    assert json.loads(toys.devhost("explain", "example.com/gpu", "-o", "json").stdout) == [skipped]
    assert why in toys.devhost("explain", "0000:5b:00.0").stderr
    unknown = toys.devhost("discover", "example.com/gup").stderr
    assert "known resources: example.com/gpu, example.com/toy" in unknown


def test_explain_of_a_misspelt_resource_lists_the_known_ones(toys):
    done = toys.devhost("explain", "example.com/tyt")
    why = "no resource is called 'example.com/tyt' (known resources: example.com/toy)"
    assert (done.returncode, done.stderr) == (2, f"devhost: {why}\n")
    assert "no backend has a device 'toy/three'" in toys.devhost("explain", "toy/three").stderr
    assert "no backend has a device '/dev/three'" in toys.devhost("explain", "/dev/three").stderr
