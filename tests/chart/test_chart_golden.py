"""What values change in the rendering, word for word: a file of ``golden`` for each subject.

A case has its promise, its values, and what they change; ``arguments`` are those of Helm. The first case of a
file starts from the defaults of the chart, all others from the values and the rendering of the first.

``DEVHOST_GOLDEN=1 pytest tests/chart/test_chart_golden.py`` writes again what is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.golden import RENEWS, changes
from rendering import CHART, Chart, Rendered, Types, mounts

from devhost import __version__

GOLDEN = Path(__file__).parent / "golden"
CONFIG = yaml.safe_load((CHART / "values.yaml").read_text())["config"]
USUAL = {
    "app.kubernetes.io/name": "devhost",
    "app.kubernetes.io/instance": "devhost",
    "app.kubernetes.io/version": __version__,
    "app.kubernetes.io/managed-by": "Helm",
    "helm.sh/chart": f"devhost-{__version__}",
}
"""The labels that objects have."""
SHORT = 140
"""An item of a list with at most so many characters is shown as one."""
SHORTER = (
    (r"spec\.template\.spec\.containers\[\w+\]", "container"),
    (r"spec\.template\.spec\b", "pod"),
    (r"spec\.template\.metadata\b", "pod.metadata"),
    (r"DuringSchedulingIgnoredDuringExecution\b", ""),
    (re.escape(__version__), "<version>"),
)


def cases(file: Path) -> Iterator[tuple[str, str]]:
    """Promises with values, each with what differs."""
    for case in re.split(r"^(?=# )", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        given, _, changed = case.partition("---\n")
        yield given, changed.rstrip("\n")


def shown(rendered: Rendered, config: object) -> dict[str, str]:
    """What objects have, by its place: mounts with their volumes, and no configuration that is ``config``."""
    found: dict[str, str] = {}
    for one in rendered.objects:
        kind, metadata, data = one.pop("kind"), one.pop("metadata"), one.get("data", {})
        name, labels = metadata.pop("name"), metadata.pop("labels")
        if USUAL.items() <= labels.items():
            labels = {"usual": True} | {key: labels[key] for key in labels if key not in USUAL}
        if "devhost.yaml" in data:
            parsed = yaml.safe_load(data["devhost.yaml"])
            data["devhost.yaml"] = "<config>" if config in (data["devhost.yaml"], parsed) else parsed
        if kind == "DaemonSet":
            pod = one["spec"]["template"]["spec"]
            pod["containers"][0]["mounts"] = list(mounts(pod).values())
            del pod["containers"][0]["volumeMounts"], pod["volumes"]
        head = flow({"apiVersion": one.pop("apiVersion"), **metadata, "labels": labels})
        for place, value in ((f"{kind}[{name}]", head), *places(one, f"{kind}[{name}]")):
            for pattern, shorter in SHORTER:
                place, value = re.sub(pattern, shorter, place), re.sub(pattern, shorter, value)
            assert place not in found
            found[place] = value
    return found


def flow(value: object) -> str:
    """YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()


def places(value: Any, place: str, is_item: bool = False) -> Iterator[tuple[str, str]]:
    """Each value of an object; items of lists are named as they are."""
    if isinstance(value, str) and " " in value:
        yield place, value.replace("\n", "\\n")
    elif not value or not isinstance(value, dict | list) or (is_item and len(flow(value)) <= SHORT):
        yield place, flow(value)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from places(one, f"{place}.{key}")
    elif place.endswith(".args"):
        for number, one in enumerate(value):
            option, _, argument = one.partition("=") if one.startswith("-") else (number, "", one)
            yield f"{place}[{option}]", argument or "given"
    elif isinstance(value[0], dict):
        for number, one in enumerate(value):
            name = one.pop("name", number)
            yield from places(one, f"{place}[{one.pop('mountPath', name)}]", is_item=True)
    else:
        yield place, flow(value)


@pytest.mark.parametrize("subject", [file.stem for file in sorted(GOLDEN.iterdir())])
def test_values_change_in_the_rendering_what_the_golden_file_has(
    chart: Chart, types: Types, subject: str
) -> None:
    file, first, texts, renewed = GOLDEN / f"{subject}.txt", {}, [], []
    before = {} if subject == "default" else shown(chart.render(), CONFIG)
    for given, expected in cases(file):
        values = first | yaml.safe_load(given)
        options = values.pop("arguments", "").split()
        rendered = chart.render(values, *options)
        config = values.get("config", {})
        now = shown(rendered, config if isinstance(config, str) else CONFIG | config)
        changed = "\n".join(changes(before, now)) or "nothing"
        if not texts:
            first, before = values, now
        texts.append(rendered.text)
        renewed.append(f"{given}---\n{changed}\n")
        assert RENEWS or given + changed == given + expected
    assert types.complaints("\n---\n".join(texts)) == []
    if RENEWS:
        file.write_text("\n".join(renewed), encoding="utf-8")
