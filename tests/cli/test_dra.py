"""`devhost dra classes`: objects for kubectl on standard output, and what else to know on standard error."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from devhost.cli.dra import command

TEMPLATE = "name: 'example.com/toy-{model}', backend: toy, serve: dra"
PLAIN = "name: example.com/toy, backend: toy, serve: dra"


def write(toys, *resources: str, driver: str = "devhost.example.com") -> None:
    toys.write(*resources)
    toys.config.write_text(f"dra: {{driver: {driver}}}\n{toys.config.read_text()}")


def classes(toys, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """The objects on standard output, and standard error."""
    done = toys.devhost("dra", "classes", *arguments)
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load_all(done.stdout)
    return [one for one in found if one is not None], done.stderr


def names(found: list[dict[str, Any]]) -> list[str]:
    return [one["metadata"]["name"] for one in found]


def test_a_class_is_printed_for_each_resource_that_pods_get_with_claims(toys):
    write(
        toys,
        f"{PLAIN}, where: {{model: x100}}, dra: {{extendedName: true}}",
        "name: example.com/plugged, backend: toy, where: {model: x200}",
        "name: example.com/rest, backend: toy, serve: dra, dra: {class: 'yes'}",
    )

    found, said = classes(toys)

    assert said == ""
    assert names(found) == ["toy.example.com", "yes"]
    assert [one["spec"].get("extendedResourceName") for one in found] == ["example.com/toy", None]
    (selector,) = found[0]["spec"]["selectors"]
    assert selector["cel"]["expression"] == (
        'device.driver == "devhost.example.com" && has(device.attributes["devhost.example.com"].resource) && '
        'device.attributes["devhost.example.com"].resource == "example.com/toy"'
    )


def test_a_class_comes_with_what_claims_may_request(toys):
    memory = "memory: {total: 8Gi, min: 1Gi, step: 256Mi, default: 2Gi, max: 4Gi}"
    capacity = f"{{{memory}, cores: {{total: 10, min: 1}}}}"
    write(toys, f"{PLAIN}, share: {{capacity: {capacity}, limit: none}}")
    assert toys.devhost("dra", "classes").stdout.splitlines()[:2] == [
        "# a claim may request memory: 1Gi or more in steps of 256Mi up to 4Gi; 2Gi by default",
        "# a claim may request cores: 1 or more in steps of 1; 1 by default",
    ]


def test_explain_shows_how_claims_share_a_device(toys):
    capacity = "{memory: {total: 8Gi, min: 1Gi}}"
    write(toys, f"{PLAIN}, where: {{model: x100}}, share: {{capacity: {capacity}, limit: none}}")
    shown = toys.devhost("explain", "one").stdout
    assert "yes, it takes the device, shared by memory: at most 8 claims" in shown


def test_json_has_the_same_objects_in_a_list(toys):
    write(toys, f"{PLAIN}, where: {{model: x100}}, dra: {{class: 'null', extendedName: true}}", TEMPLATE)
    expected, _ = classes(toys)

    document = json.loads(toys.devhost("dra", "classes", "-o", "json").stdout)

    assert (document["apiVersion"], document["kind"]) == ("v1", "List")
    assert document["items"] == expected
    assert len(expected) == 2


def test_two_resources_of_one_class_are_one_object(toys):
    shared = "serve: dra, dra: {class: toys.example.com}"
    write(
        toys,
        f"name: example.com/one, backend: toy, where: {{model: x100}}, {shared}",
        f"name: example.com/two, backend: toy, {shared}",
    )

    ((found,), _) = classes(toys)

    assert found["metadata"]["name"] == "toys.example.com"
    expression = found["spec"]["selectors"][0]["cel"]["expression"]
    assert expression.endswith('.resource in ["example.com/one", "example.com/two"]')


def test_a_template_makes_a_class_for_each_name_on_this_machine(toys):
    toys.plug("one=x10", "two=x9", "three=x9")
    write(toys, f"{TEMPLATE}, dra: {{extendedName: true}}")

    found, said = classes(toys)

    assert said == ""
    assert names(found) == ["toy-x9.example.com", "toy-x10.example.com"]
    assert found[0]["spec"]["extendedResourceName"] == "example.com/toy-x9"


def test_a_template_without_devices_is_one_line_and_the_other_classes_are_printed(toys):
    write(toys, f"{TEMPLATE}, where: {{model: other}}", PLAIN)

    found, said = classes(toys)

    assert names(found) == ["toy.example.com"]
    assert said == (
        "devhost: no DeviceClass for example.com/toy-{model}: its names come from devices, and this machine "
        "has none (run the command on a node with such devices)\n"
    )


def test_a_template_of_a_failed_backend_is_an_error_and_nothing_is_printed(toys):
    (toys.root / "toys").unlink()
    write(toys, TEMPLATE)

    done = toys.devhost("dra", "classes")

    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "devhost: the names of example.com/toy-{model} are not known: backend toy failed: "
    )


def test_plain_names_need_no_devices(toys):
    (toys.root / "toys").unlink()
    write(toys, PLAIN)

    found, said = classes(toys)

    assert (names(found), said) == (["toy.example.com"], "")


@pytest.mark.parametrize(
    ("form", "printed"), [("yaml", ""), ("json", {"apiVersion": "v1", "kind": "List", "items": []})]
)
def test_without_a_resource_for_claims_it_prints_no_object_and_one_line(toys, form, printed):
    done = toys.devhost("dra", "classes", "--output", form)

    assert done.returncode == 0
    assert (json.loads(done.stdout) if form == "json" else done.stdout) == printed
    assert done.stderr == "devhost: no resource has `serve: dra`, so there is no DeviceClass to print\n"


def test_names_that_end_in_one_class_are_refused_if_it_has_an_extended_name(toys):
    toys.plug("one=x.b")
    write(
        toys,
        "name: b.example.com/x, backend: toy, where: {model: none}, serve: dra, "
        "dra: {class: toy-x.b.example.com}",
        f"{TEMPLATE}, dra: {{extendedName: true}}",
    )

    done = toys.devhost("dra", "classes")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "devhost: b.example.com/x and example.com/toy-x.b have the same DeviceClass toy-x.b.example.com, and "
        "extendedName allows one of them (give one entry another dra.class or name)\n"
    )


def test_a_bad_file_is_refused_with_its_lines(toys):
    write(toys, PLAIN, driver="Upper")

    done = toys.devhost("dra", "classes")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{toys.config}:1:15: dra.driver: must be a DNS subdomain")


@pytest.mark.usefixtures("no_installed_plugins")
def test_optional_entries_without_their_package_are_left_out_and_named(tmp_path):
    file = tmp_path / "devhost.yaml"
    file.write_text(
        "{version: 1, dra: {driver: d.e}, resources: "
        "[{name: nvidia.com/gpu, backend: gpu, optional: true, serve: dra}]}"
    )

    done = CliRunner().invoke(command, ["classes", "--config", str(file)])

    assert (done.exit_code, done.stdout) == (0, "")
    missing, nothing = done.stderr.splitlines()
    assert missing.startswith(
        "devhost: entries of backend gpu are left out: it is not installed (install the "
    )
    assert nothing == "devhost: no other resource has `serve: dra`, so there is no DeviceClass to print"


def test_check_counts_the_resources_for_claims(toys):
    write(toys, f"{PLAIN}, where: {{model: x100}}", "name: example.com/plugged, backend: toy")

    done = toys.call("check", str(toys.config))

    assert "ok (2 resources, 1 of them with serve: dra, 1 backend)" in done.stdout


def test_discover_shows_the_side_of_each_resource(toys):
    write(toys, f"{PLAIN}, where: {{model: x100}}", "name: example.com/plugged, backend: toy")

    header, *rows = [line.split() for line in toys.devhost("discover").stdout.splitlines()]

    assert header[:3] == ["RESOURCE", "SERVE", "DEVICE"]
    assert ["example.com/plugged", "plugin", "two", "Healthy"] in [row[:4] for row in rows]
    assert ["example.com/toy", "dra", "one", "Healthy"] in [row[:4] for row in rows]
    document = json.loads(toys.devhost("discover", "--output", "json").stdout)
    assert {one["name"]: one["serve"] for one in document["resources"]} == {
        "example.com/plugged": "plugin",
        "example.com/toy": "dra",
    }


def test_discover_has_no_such_column_without_a_driver(toys):
    assert "SERVE" not in toys.devhost("discover").stdout
