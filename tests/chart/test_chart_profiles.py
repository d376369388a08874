"""The chart's profiles and the overlays of Kustomize say the same, and devhost takes what they configure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from kit.command import DEVHOST, completed
from rendering import CHART, DEPLOY, PROFILES, ROOT, Chart, Rendered, Types, built, comparable, resources

from devhost import __version__

OVERLAYS = DEPLOY / "kustomize" / "overlays"
BASE = DEPLOY / "kustomize" / "base"
VALUES = [CHART / "values.yaml", *PROFILES.values()]


def check(text: str) -> subprocess.CompletedProcess[str]:
    """What ``devhost check`` says of a configuration."""
    return completed(*DEVHOST, "check", "-", input=text)


def test_there_is_an_overlay_for_each_profile() -> None:
    assert sorted(one.name for one in OVERLAYS.iterdir()) == sorted([*PROFILES, "groups"])


@pytest.mark.parametrize("values", VALUES, ids=lambda one: one.stem)
def test_devhost_takes_the_configuration_that_is_rendered(chart: Chart, values: Path) -> None:
    rendered = chart.render({}, "--values", values)
    done = check(rendered.configuration)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(rendered.configuration) == yaml.safe_load(values.read_text())["config"]


@pytest.mark.parametrize("profile", PROFILES)
def test_an_overlay_has_the_configuration_of_its_profile(profile: str) -> None:
    text = (OVERLAYS / profile / "devhost.yaml").read_text()
    assert yaml.safe_load(text) == yaml.safe_load(PROFILES[profile].read_text())["config"]


@pytest.mark.parametrize("kind", ["DaemonSet", "ConfigMap"])
def test_the_base_is_what_the_chart_renders_without_values(chart: Chart, kustomize: Path, kind: str) -> None:
    theirs, ours = built(kustomize, BASE), chart.render()
    assert sorted({*theirs.kinds} - {"Namespace"}) == ours.kinds
    if kind == "ConfigMap":
        assert yaml.safe_load(theirs.configuration) == yaml.safe_load(ours.configuration)
    else:
        assert comparable(theirs.only(kind)) == comparable(ours.only(kind))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kind", ["DaemonSet", "Service"])
def test_an_overlay_is_what_the_chart_renders(chart: Chart, kustomize: Path, profile: str, kind: str) -> None:
    theirs, ours = built(kustomize, OVERLAYS / profile), chart.render(profile=profile)
    assert (kind in theirs.kinds) == (kind in ours.kinds)
    if kind in ours.kinds:
        assert comparable(theirs.only(kind)) == comparable(ours.only(kind))


@pytest.mark.parametrize(
    "directory", [BASE, *(OVERLAYS / profile for profile in PROFILES)], ids=lambda one: one.name
)
def test_an_overlay_is_whole(kustomize: Path, types: Types, directory: Path) -> None:
    rendered = built(kustomize, directory)
    assert types.complaints(rendered.text) == []
    name = rendered.only("ConfigMap")["metadata"]["name"]
    assert rendered.mounts["/etc/devhost"]["configMap"] == {"name": name}
    labels = rendered.only("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert resources(rendered.configuration)


def overlay(directory: Path, kustomize: Path, text: str) -> Rendered:
    """An overlay of somebody's own on top of `minimal`."""
    (directory / "deploy").symlink_to(DEPLOY)
    mine = directory / "mine"
    mine.mkdir()
    (mine / "devhost.yaml").write_text("version: 1\nresources: []\n")
    (mine / "kustomization.yaml").write_text(f"resources: [../deploy/kustomize/overlays/minimal]\n{text}")
    return built(kustomize, mine)


def test_names_and_images_can_be_changed_from_outside(kustomize: Path, tmp_path: Path) -> None:
    image = "images: [{name: devhost, newName: local/devhost, newTag: v2}]\n"
    text = f"namePrefix: edge-\nnamespace: hardware\n{image}"
    rendered = overlay(tmp_path, kustomize, text)
    assert rendered.container["image"] == "local/devhost:v2"
    assert rendered.only("DaemonSet")["metadata"]["name"] == "edge-devhost"
    assert rendered.only("DaemonSet")["metadata"]["namespace"] == "hardware"
    assert rendered.only("Namespace")["metadata"]["name"] == "hardware"
    assert rendered.mounts["/etc/devhost"]["configMap"] == {"name": "edge-devhost"}


def test_an_overlay_can_bring_its_own_configuration(kustomize: Path, tmp_path: Path) -> None:
    text = (
        "configMapGenerator:\n"
        "  - {name: devhost, namespace: devhost, behavior: replace, files: [devhost.yaml]}\n"
        "generatorOptions: {disableNameSuffixHash: true}\n"
    )
    rendered = overlay(tmp_path, kustomize, text)
    assert rendered.configuration == "version: 1\nresources: []\n"
    assert rendered.mounts["/etc/devhost"]["configMap"] == {"name": "devhost"}


def test_the_network_policy_can_be_added_to_an_overlay(chart: Chart, kustomize: Path, tmp_path: Path) -> None:
    component = "components: [../deploy/kustomize/components/network-policy]\n"
    theirs = overlay(tmp_path, kustomize, component).only("NetworkPolicy")
    monitoring = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    policy = {"enabled": True, "from": [{"namespaceSelector": monitoring}]}
    ours = chart.render({"networkPolicy": policy}).only("NetworkPolicy")
    assert (
        theirs["spec"]["podSelector"]["matchLabels"].items()
        <= ours["spec"]["podSelector"]["matchLabels"].items()
    )
    for key in ("ingress", "policyTypes"):
        assert theirs["spec"][key] == ours["spec"][key]


@pytest.mark.parametrize("profile", PROFILES)
def test_an_edit_of_an_overlays_configuration_restarts_nothing(kustomize: Path, profile: str) -> None:
    assert built(kustomize, OVERLAYS / profile).only("ConfigMap")["metadata"]["name"] == "devhost"


def test_the_chart_can_be_packed(chart: Chart, tmp_path: Path) -> None:
    done = chart.run("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    package = tmp_path / f"devhost-{__version__}.tgz"
    done = chart.run("show", "values", package)
    assert done.stdout.strip() == (CHART / "values.yaml").read_text().strip()


def test_the_chart_comes_with_its_profiles_and_nothing_hidden() -> None:
    files = {str(file.relative_to(CHART)) for file in CHART.rglob("*") if file.is_file()}
    assert {f"profiles/{profile}.yaml" for profile in PROFILES} <= files
    assert {"Chart.yaml", "values.yaml", "values.schema.json", "templates/NOTES.txt"} <= files


def test_the_profiles_cover_every_backend() -> None:
    used = {
        one["backend"] for file in VALUES for one in yaml.safe_load(file.read_text())["config"]["resources"]
    }
    assert used == {plugin.parent.name for plugin in ROOT.glob("plugins/*/pyproject.toml")}
