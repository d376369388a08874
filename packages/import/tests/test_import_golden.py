"""What each importer makes of each input in ``data``, word for word, and that no key of an input is lost.

Run this file to write ``golden`` again: ``python packages/import/tests/test_import_golden.py``.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from devhost_import.source import UNKNOWN
from hypothesis import settings
from importing import HERE, installed, loaded, run, said

from devhost.backend.errors import DevhostError

DATA, INPUTS, GOLDEN = HERE / "data", HERE / "inputs", HERE / "golden"
"""Examples that peers ship, further inputs, and the results."""

ARGUMENTS = {
    "generic-device-plugin": {
        "daemonset.yaml": ["--domain squat.ai"],
        "daemonset-k3s.yaml": ["--domain squat.ai"],
        "devices.yaml": ["--domain squat.ai"],
        "readme.yaml": ["--domain squat.ai"],
    },
    "intel-device-plugins": {"qat.yaml": ["", "--services dc"]},
    "nvidia-device-plugin": {
        "configmap.yaml": ["--key config0", "--key config1"],
        "names-by-pattern.yaml": ["", "--as-written"],
        "twice.yaml": ["", "--as-written"],
    },
    "sriov-network-device-plugin": {
        "operator-configmap.yaml": ["--key worker-0"],
        "per-node.yaml": ["--key sriov-node-0", "--key sriov-node-1"],
    },
}
"""Options, where an input needs some; several make several cases."""

REFUSED = {
    "akri/grouped.yaml",  # a template
    "akri/onvif.yaml",
    "akri/udev-video-protocol.yaml",
    "amd-device-plugin/two-deviceconfigs.yaml",
    "gke-device-plugin/any-mapping.yaml",
    "gke-device-plugin/daemonset-first.yaml",
    "intel-device-plugins/two-objects.yaml",
    "kubevirt/mediated.yaml",
    "nvidia-device-plugin/file-parameters.yaml",
    "nvidia-device-plugin/post-renderers.yaml",
    "rdma-shared-dev-plugin/empty.yaml",
    "rdma-shared-dev-plugin/former.yaml",
    "rdma-shared-dev-plugin/mode-hca.yaml",
    "rdma-shared-dev-plugin/mode-sriov.yaml",
    "sriov-network-device-plugin/node-policy.yaml",
    "sriov-network-device-plugin/operator-values-of-today.yaml",
    "sriov-network-device-plugin/vdpa-as-shipped.yaml",
}


@dataclass(frozen=True)
class Case:
    peer: str
    file: str
    arguments: str

    def __str__(self) -> str:
        return f"{self.peer}/{self.file} {self.arguments}".strip()

    @property
    def path(self) -> Path:
        shipped = DATA / self.peer / self.file
        return shipped if shipped.exists() else INPUTS / self.peer / self.file

    @property
    def golden(self) -> Path:
        more = self.arguments.replace("--", "").replace(" ", "-")
        return (
            GOLDEN
            / self.peer
            / f"{Path(self.file).stem}{f'.{more}' if more and 'domain' not in more else ''}.yaml"
        )

    def result(self) -> str:
        """What the command prints, or the line of its error."""
        done = run(self.peer, self.path.read_bytes(), *self.arguments.split())
        return done.stdout or f"refused: {done.exception}\n"


def cases() -> Iterator[Case]:
    for path in sorted([*DATA.glob("*/*"), *INPUTS.glob("*/*")]):
        peer = path.parent.name
        if path.suffix in (".yaml", ".json"):
            for arguments in ARGUMENTS.get(peer, {}).get(path.name, [""]):
                yield Case(peer, path.name, arguments)


CASES = list(cases())

# the same as the safe ones, ten times faster
LOADER, DUMPER = getattr(yaml, "CSafeLoader", yaml.SafeLoader), getattr(yaml, "CSafeDumper", yaml.SafeDumper)
CONVERTED = [one for one in CASES if f"{one.peer}/{one.file}" not in REFUSED]

if not {"udev", "gpu", "sriov", "rdma", "fpga"} <= installed().installed.keys():
    pytest.skip("the results are for all of devhost's backends", allow_module_level=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_input_becomes_this_file_with_these_remarks(case: Case) -> None:
    assert case.result() == case.golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CONVERTED, ids=str)
def test_every_key_of_an_input_is_converted_or_named_with_what_to_do(case: Case) -> None:
    result = case.result()
    loaded(result)  # as devhost check does
    assert UNKNOWN not in said(result)


def test_every_golden_file_has_its_input() -> None:
    assert {path for path in GOLDEN.glob("*/*")} == {case.golden for case in CASES}


OF_OBJECTS = {"metadata", "status"}
"""What every object has, whichever plugin it is for."""

OF_PODS = {
    *(
        "affinity",
        "daemonsets",
        "image",
        "initContainers",
        "labels",
        "nodeSelector",
        "podAnnotations",
        "resources",
        "selectorLabelsOverride",
    ),
    *("securityContext", "selector", "tolerations", "updateStrategy", "valueFrom", "volumeMounts", "volumes"),
    *("persistence", "ports", "livenessProbe", "readinessProbe", "rollingUpdate", "template", "fieldRef"),
}
"""Settings of the plugin's pods, which an import names as a whole."""

OF_OTHERS = {
    *(
        "brokerSpec",
        "brokerPodSpec",
        "instanceServiceSpec",
        "configurationServiceSpec",
        "operator",
        "driver",
        "dependsOn",
    ),
    *("toolkit", "cdi", "mig", "migManager", "gfd", "gds", "hostPaths", "sandboxWorkloads", "mps"),
    *(
        "ofedDriver",
        "secondaryNetwork",
        "sriovDevicePlugin",
        "rdmaSharedDevicePlugin",
        "nvIpam",
        "ibKubernetes",
    ),
    *(
        "developerConfiguration",
        "chart",
        "chartRef",
        "destination",
        "syncPolicy",
        "controller",
        "controllers",
        "set",
    ),
    *(
        "nicConfigurationOperator",
        "docaTelemetryService",
        "metricsExporter",
        "configManager",
        "env",
        "parameters",
        "properties",
        "brokerPod",
        "discovery",
        "rules",
    ),
}
"""Parts of operators, charts and brokers, which an import names as a whole."""


@pytest.mark.parametrize("case", CONVERTED, ids=str)
def test_a_key_that_no_importer_knows_is_refused_or_named(case: Case) -> None:
    """Each mapping of the input gets one more key, as from a release that does not exist yet."""
    text = case.path.read_text(encoding="utf-8")
    if case.file == "misplaced.yaml":  # named as a whole
        return
    if text.startswith("USER"):
        text = text.partition("\n")[2]
    documents: Any = [one for one in yaml.load_all(text.replace("\t", " "), LOADER) if one is not None]
    for path in drawn(case, [path for n, one in enumerate(documents) for path in mappings(one, (n,))]):
        changed = copy.deepcopy(documents)
        inner: Any = changed
        for step in path:
            inner = inner[step]
        inner["aKeyOfTomorrow"] = "x"
        done = run(case.peer, yaml.dump_all(changed, Dumper=DUMPER), *case.arguments.split())
        result = said(done.stdout) or str(done.exception)
        unread = re.findall(r"Not part of the plugin's configuration: (.*?)\.(?: |\n)", result)
        mine = documents[path[0]]["items"][path[2]] if "items" in path[1:2] else documents[path[0]]
        if not any(mine["metadata"]["name"] in one for one in unread if "metadata" in mine):
            assert "aKeyOfTomorrow" in result, path


@pytest.mark.parametrize("case", [one for one in CASES if one.path.is_relative_to(INPUTS)], ids=str)
def test_a_value_of_another_type_is_converted_or_refused_in_words(case: Case) -> None:
    """Each value of the input is replaced by another in turn."""
    text = case.path.read_text(encoding="utf-8")
    documents = list(yaml.load_all(text.partition("\n")[2] if text.startswith("USER") else text, LOADER))
    others = itertools.cycle([7, "x", [], {}, [{"a": 1}], None, True])
    for path in drawn(case, [path for path in places(documents) if path]):
        changed = copy.deepcopy(documents)
        inner: Any = changed
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = next(others)
        done = run(case.peer, yaml.dump_all(changed, Dumper=DUMPER), *case.arguments.split())
        assert done.exception is None or isinstance(done.exception, (DevhostError, SystemExit)), path


Place = tuple[str | int, ...]
"""The keys and indices that lead to a value."""


def drawn(case: Case, paths: Sequence[Place]) -> Sequence[Place]:
    """The places of an input to change: so many percent of them as a property gets examples, at least one."""
    percent = min(100, settings().max_examples)
    return random.Random(str(case)).sample(paths, math.ceil(len(paths) * percent / 100))


def places(node: Any, path: Place = ()) -> Iterator[Place]:
    yield path
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inside:
        yield from places(value, (*path, key))


def mappings(node: Any, path: Place) -> Iterator[Place]:
    """The paths of the mappings in a document whose keys have a meaning for an import."""
    if isinstance(node, dict):
        is_container = "image" in node and isinstance(node.get("image"), str)
        if path[-1] != "data" and not is_container and "kind" not in node:
            yield path
        for key, value in node.items():
            if key not in OF_OBJECTS | OF_PODS | OF_OTHERS:
                yield from mappings(value, (*path, key))
    elif isinstance(node, list):
        for n, value in enumerate(node):
            yield from mappings(value, (*path, n))


if __name__ == "__main__":
    for one in CASES:
        one.golden.parent.mkdir(parents=True, exist_ok=True)
        one.golden.write_text(one.result(), encoding="utf-8")
    sys.exit(0)
