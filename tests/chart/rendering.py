"""What Helm and Kustomize make of the manifests, as values to look at."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "devhost"
PROFILES = {file.stem: file for file in sorted((CHART / "profiles").glob("*.yaml"))}

LIMIT = 120
"""Seconds for a program that takes a tenth of one on an idle machine."""

OWN = "app.kubernetes.io/name"
"""The label that says what an object belongs to, in both kinds of manifest."""

OWN_VERSIONS = (
    "v1",
    "apps/v1",
    "rbac.authorization.k8s.io/v1",
    "admissionregistration.k8s.io/v1",
    "resource.k8s.io/v1",
)
"""Those of Kubernetes' own objects that :class:`Types` knows."""

Object = dict[str, Any]
Values = Mapping[str, Any]


class Refused(Exception):
    """What Helm says of values that it does not take."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects of one release, or of one overlay."""

    text: str

    @property
    def objects(self) -> list[Object]:
        return [one for one in yaml.safe_load_all(self.text) if one]

    @property
    def kinds(self) -> list[str]:
        return sorted(one["kind"] for one in self.objects)

    def only(self, kind: str) -> Object:
        """The one object of this kind."""
        (found,) = [one for one in self.objects if one["kind"] == kind]
        return found

    @property
    def pod(self) -> Object:
        """What the DaemonSet says of its pods."""
        spec: Object = self.only("DaemonSet")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def args(self) -> list[str]:
        return list(self.container["args"])

    @property
    def mounts(self) -> dict[str, Object]:
        """As :func:`mounts`, of the pods of the DaemonSet."""
        return mounts(self.pod)

    @property
    def configuration(self) -> str:
        """The devhost.yaml in the ConfigMap."""
        (found,) = [
            one["data"]["devhost.yaml"]
            for one in self.objects
            if one["kind"] == "ConfigMap" and "devhost.yaml" in one["data"]
        ]
        return str(found)


def mounts(pod: Object) -> dict[str, Object]:
    """What the container of a pod sees, by its path there: the mount with its volume's ``hostPath``."""
    (container,) = pod["containers"]
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert len(volumes) == len(pod["volumes"]), "two volumes of one name"
    found = {one["mountPath"]: {**one, **volumes[one["name"]]} for one in container["volumeMounts"]}
    assert len(found) == len(container["volumeMounts"]), "two mounts at one place"
    assert {one["name"] for one in found.values()} == set(volumes), "a volume that is not mounted"
    return found


class Chart:
    """The chart, rendered by Helm without a cluster."""

    def __init__(self, helm: Path, directory: Path = CHART) -> None:
        self._helm = helm
        self._directory = directory

    def run(self, *arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
        """What Helm says to these arguments; it finds nothing of the user's."""
        return subprocess.run(
            [self._helm, *arguments], input=given, capture_output=True, text=True, timeout=LIMIT, check=False
        )

    def render(
        self,
        values: Values | None = None,
        *arguments: str | Path,
        release: str = "devhost",
        profile: str = "",
    ) -> Rendered:
        """The objects of a release with these values.

        Raises:
            Refused: Helm does not take them.
        """
        command: list[str | Path] = ["template", release, self._directory, "--namespace=devhost"]
        if profile:
            command += ["--values", PROFILES[profile]]
        done = self.run(*command, "--values=-", *arguments, given=json.dumps(values or {}))
        if done.returncode:
            raise Refused(done.stderr)
        assert done.stderr == "", "Helm warns of something"
        return Rendered(done.stdout)


def refusal(chart: Chart, values: Values, *, release: str = "devhost", profile: str = "") -> str:
    """What Helm says of values that it does not take, without its advice about itself."""
    try:
        chart.render(values, release=release, profile=profile)
    except Refused as refused:
        return str(refused).replace("Use --debug flag to render out invalid YAML", "").strip()
    raise AssertionError("Helm takes these values")


@dataclass(frozen=True, slots=True)
class Types:
    """Kubernetes' own types, which know every field there is."""

    program: Path

    def complaints(self, text: str) -> list[str]:
        """What is wrong with objects of Kubernetes' own; those of others are not looked at."""
        own = [one for one in yaml.safe_load_all(text) if one and _is_own(one)]
        done = subprocess.run(
            [self.program],
            input=yaml.safe_dump_all(own),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        return (done.stdout + done.stderr).splitlines()


def _is_own(one: Object) -> bool:
    return one["apiVersion"] in OWN_VERSIONS


def built(kustomize: Path, directory: Path) -> Rendered:
    """The objects of an overlay."""
    done = subprocess.run(
        [kustomize, "build", directory], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return Rendered(done.stdout)


def overlay(kustomize: Path, directory: Path, base: str, *components: str) -> Rendered:
    """What kustomize makes of components on top of ``base``, a directory below deploy/kustomize."""
    (directory / "deploy").symlink_to(DEPLOY)
    mine = directory / "mine"
    mine.mkdir()
    places = [f"../deploy/kustomize/components/{one}" for one in components]
    text = json.dumps({"resources": [f"../deploy/kustomize/{base}"], "components": places})
    (mine / "kustomization.yaml").write_text(text)
    return built(kustomize, mine)


def comparable(one: Object) -> Object:
    """An object without what differs for good: who made it, whom it avoids, the order of what has names."""
    return dict(_sorted(_without_labels(json.loads(json.dumps(one)))))


def _without_labels(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: {OWN: below[OWN]}
            if key in ("labels", "matchLabels", "selector") and OWN in below
            else _without_labels(below)
            for key, below in value.items()
            if key != "affinity"  # test_chart_apart.py has what it means
        }
    return [_without_labels(one) for one in value] if isinstance(value, list) else value


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(below) for key, below in value.items()}
    if isinstance(value, list):
        below = [_sorted(one) for one in value]
        named = all(isinstance(one, dict) and "name" in one for one in below)
        return sorted(below, key=lambda one: (one["name"], one.get("mountPath", ""))) if named else below
    return value


def resources(text: str) -> Sequence[str]:
    """The names of the resources in a configuration."""
    return [one["name"] for one in yaml.safe_load(text)["resources"]]
