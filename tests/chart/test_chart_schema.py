"""Helm refuses what is misspelt or wrong, and says what it is and where."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from rendering import CHART, PROFILES, Chart, Refused, Rendered

from devhost.cli.plugins import print_schema as schema

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())

FOREIGN = {"devhost.dev/x": 1}


def properties(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every value that the schema knows, with its place."""
    for key, one in schema.get("properties", {}).items():
        yield f"{path}/{key}", one
        yield from properties(one, f"{path}/{key}")
    if "items" in schema:
        yield from properties(schema["items"], f"{path}/*")


KNOWN = dict(properties(SCHEMA))
CLOSED = sorted(
    path
    for path, one in KNOWN.items()
    if one.get("additionalProperties") is False and "patternProperties" not in one
)


def place(path: str, value: object) -> dict[str, Any]:
    """Values that have ``value`` at ``path``."""
    for part in reversed(path.strip("/").split("/")):
        value = [value] if part == "*" else {part: value}
    assert isinstance(value, dict)
    return value


def refusal(chart: Chart, values: dict[str, Any]) -> str:
    with pytest.raises(Refused) as caught:
        chart.render(values)
    return str(caught.value)


def test_the_schema_is_one_that_old_and_new_helms_read() -> None:
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("values", [CHART / "values.yaml", *PROFILES.values()], ids=lambda one: one.stem)
def test_the_values_that_come_with_the_chart_obey_the_schema(values: Path) -> None:
    given = VALUES | yaml.safe_load(values.read_text())
    assert [one.message for one in jsonschema.Draft7Validator(SCHEMA).iter_errors(given)] == []


def test_the_outline_of_the_configuration_is_devhosts_own() -> None:
    """Where the language gets a key, the chart must let it through."""
    language = json.loads(CliRunner().invoke(schema, []).output)
    ours = SCHEMA["properties"]["config"]["properties"]
    assert set(ours) == set(language["properties"])
    for key in ("cdi", "deviceInfo", "labels"):
        assert set(ours[key]["properties"]) == set(language["properties"][key]["properties"]), key


def test_every_value_is_in_the_schema_with_what_it_means() -> None:
    assert [path for path, one in KNOWN.items() if not one.get("description", "").endswith(".")] == []
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)


def test_every_default_of_the_schema_is_in_the_values() -> None:
    def missing(schema: dict[str, Any], values: dict[str, Any], path: str) -> Iterator[str]:
        for key, one in schema.get("properties", {}).items():
            if key not in values:
                yield f"{path}/{key}"
            elif isinstance(values[key], dict) and key not in ("config", "affinity", "seLinuxOptions"):
                yield from missing(one, values[key], f"{path}/{key}")

    assert list(missing(SCHEMA, VALUES, "")) == ["/global"]


def test_every_value_has_a_comment() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    unexplained = [
        line
        for before, line in itertools.pairwise(lines)
        if line[:1].isalpha()
        and not before.startswith("#")
        and line.partition(":")[0] not in ("image", "kubelet", "listen")
    ]
    assert unexplained == []


@pytest.mark.parametrize("path", ["", *CLOSED])
def test_a_misspelt_value_is_refused_by_its_name(chart: Chart, path: str) -> None:
    message = refusal(chart, place(f"{path}/nodeSelecter", "x"))
    assert "additional properties 'nodeSelecter' not allowed" in message
    assert f"at '{path.replace('*', '0')}'" in message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("/securityProfile", "root", "must be one of 'auto', 'unprivileged', 'gpu', 'privileged'"),
        ("/hostNetwork", "yes", "must be one of 'auto', true, false"),
        ("/host/cdi", 1, "must be one of 'auto', true, false"),
        ("/listen/port", 70000, "got 70,000, want 65,535"),
        ("/listen/port", "http", "got string, want integer"),
        ("/listen/podNames", "yes", "got string, want boolean"),
        ("/networkPolicy/from", {"namespaceSelector": {}}, "got object, want array"),
        ("/networkPolicy/from/*/ipBlock", {"cidr": "10.0.0.1"}, "does not match pattern"),
        ("/listen/address", "node.local", "does not match pattern"),
        ("/logLevel", "verbose", "must be one of 'debug', 'info', 'warning', 'error'"),
        ("/podMetrics", "true", "got string, want boolean"),
        ("/maxUnavailable", 0, "got 0, want 1"),
        ("/maxUnavailable", "half", "does not match pattern"),
        ("/terminationGracePeriodSeconds", 1, "got 1, want 5"),
        ("/kubelet/root", "var/lib/kubelet", "does not match pattern"),
        ("/extraHostPaths/*", {"mountPath": "/x"}, "missing property 'path'"),
        ("/extraHostPaths/*/type", "Socket", "must be one of 'Directory', 'DirectoryOrCreate'"),
        ("/nodeSelector", {"gpu": True}, "got boolean, want string"),
        ("/tolerations", {"operator": "Exists"}, "got object, want array"),
        ("/image/repository", "devhost:0.1.0", "does not match pattern"),
        ("/image/digest", "0123", "does not match pattern"),
        ("/fullnameOverride", "Devhost", "does not match pattern"),
        ("/config/version", 2, "must be 1"),
        ("/config/resources", {}, "got object, want array"),
        ("/config/resources/*", {"backend": "udev"}, "missing property 'name'"),
        ("/config/resources/*", {"name": "fuse", "backend": "udev"}, "does not match pattern"),
        ("/config/resources/*", {"name": "a.b/c", "backend": "udev", "inject": "env"}, "'direct', 'cdi'"),
        ("/configFiles", {"backends/meter.py": ""}, "additional properties 'backends/meter.py' not allowed"),
        ("/podLabels", FOREIGN, "got number, want string"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_place(
    chart: Chart, path: str, value: object, message: str
) -> None:
    said = refusal(chart, place(path, value))
    assert message in said
    assert f"at '{path.replace('*', '0')}" in said


def test_a_capability_is_written_as_kubernetes_does(chart: Chart) -> None:
    said = refusal(chart, {"capabilities": ["CAP_NET_ADMIN"]})
    assert "CAP_NET_ADMIN is written NET_ADMIN in Kubernetes" in said


def test_there_is_one_place_for_the_configuration(chart: Chart) -> None:
    said = refusal(chart, {"configFiles": {"devhost.yaml": ""}})
    assert "configFiles: devhost.yaml comes from config" in said


def test_an_unreachable_address_is_refused(chart: Chart) -> None:
    said = refusal(chart, {"listen": {"address": "127.0.0.1"}, "hostNetwork": False})
    assert "the pod's loopback" in said
    assert "set hostNetwork to true" in said


def test_all_errors_are_reported_at_once(chart: Chart) -> None:
    said = refusal(chart, {"logLevel": "loud", "podMetrics": 1, "hostNetwrk": True})
    assert [key for key in ("logLevel", "podMetrics", "hostNetwrk") if key not in said] == []


def test_a_parent_chart_switches_it_off_by_its_condition(chart: Chart, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    shutil.copytree(CHART, parent / "charts" / "devhost")
    dependency = {"name": "devhost", "version": "*", "repository": "", "condition": "devhost.enabled"}
    description = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(json.dumps(description))
    done = chart.run("template", "all", parent, "--set", "devhost.namespaceOverride=hardware")
    assert done.returncode == 0, done.stderr
    assert {one["metadata"]["namespace"] for one in Rendered(done.stdout).objects} == {"hardware"}
    off = chart.run("template", "all", parent, "--set", "devhost.enabled=false")
    assert (off.returncode, off.stdout.strip()) == (0, "")


@pytest.mark.parametrize("profile", PROFILES)
def test_helm_lint_reports_nothing(chart: Chart, profile: str) -> None:
    done = chart.run("lint", "--strict", CHART, "--values", PROFILES[profile])
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout
