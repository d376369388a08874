"""The example pods ask for what a configuration of this repository offers, and say what to expect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from rendering import CHART, DEPLOY, ROOT, Object, Types, resources

EXAMPLES = DEPLOY / "examples"
KINDS = sorted(one.parent.name for one in EXAMPLES.glob("*/pod.yaml"))
CONFIGURATIONS = [
    *sorted((ROOT / "config").rglob("*.yaml")),
    *sorted((DEPLOY / "kustomize").rglob("devhost.yaml")),
]
PARTS = ("What the container sees", "How to check", "What can go wrong")


def pod(kind: str) -> Object:
    (found,) = yaml.safe_load_all((EXAMPLES / kind / "pod.yaml").read_text())
    assert isinstance(found, dict)
    return found


def asked(kind: str) -> str:
    """The one resource that the pod asks for."""
    (container,) = pod(kind)["spec"]["containers"]
    ((name, count),) = container["resources"]["limits"].items()
    assert count == 1
    return str(name)


def offers(configuration: Path, name: str) -> bool:
    """Whether it has a resource of this name; what stands in braces is whatever the devices say."""
    patterns = (
        re.sub(r"\\{\w+\\}", r"[\\w.-]+", re.escape(one)) for one in resources(configuration.read_text())
    )
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def linked(kind: str) -> list[Path]:
    """The configurations that the page says offer it."""
    text = (EXAMPLES / kind / "README.md").read_text()
    found = [(EXAMPLES / kind / target).resolve() for target in re.findall(r"\]\(([^)#]+\.yaml)\)", text)]
    return [one for one in found if one in CONFIGURATIONS]


def test_there_is_a_pod_for_every_backend_and_every_usual_kind() -> None:
    assert {"fpga", "fuse", "gpu", "kvm", "mig", "rdma", "serial", "sriov"} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_pod_asks_for_what_a_configuration_offers(kind: str) -> None:
    assert any(offers(one, asked(kind)) for one in CONFIGURATIONS), asked(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_its_page_names_a_configuration_that_offers_it(kind: str) -> None:
    assert any(offers(one, asked(kind)) for one in linked(kind))
    assert f"`{asked(kind)}`" in (EXAMPLES / kind / "README.md").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_its_page_shows_the_result_a_check_and_the_possible_errors(kind: str) -> None:
    text = (EXAMPLES / kind / "README.md").read_text()
    assert [part for part in PARTS if f"## {part}\n" not in text] == []
    assert f"kubectl apply -f deploy/examples/{kind}/pod.yaml" in text
    assert f"({kind}/README.md)" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_the_pod_takes_nothing_of_the_node_but_its_device(kind: str) -> None:
    spec = pod(kind)["spec"]
    assert not spec.keys() & {"volumes", "hostNetwork", "hostPID", "hostIPC", "nodeSelector", "nodeName"}
    assert not spec["containers"][0].get("securityContext", {}).get("privileged")
    assert pod(kind)["metadata"]["name"] == kind


@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_knows_every_field_of_the_pod(types: Types, kind: str) -> None:
    assert types.complaints((EXAMPLES / kind / "pod.yaml").read_text()) == []


def test_the_default_configuration_offers_what_the_pages_promise() -> None:
    config = yaml.safe_load((CHART / "values.yaml").read_text())["config"]
    names = {one["name"] for one in config["resources"]}
    as_it_is = [
        kind
        for kind in KINDS
        if "chart as it is" in (EXAMPLES / kind / "README.md").read_text().replace("\n", " ").lower()
    ]
    assert as_it_is
    assert {asked(kind) for kind in as_it_is} <= names
