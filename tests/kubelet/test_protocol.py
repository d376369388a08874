"""The generated code matches the proto, and the proto matches the kubelet's."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from kit.command import completed

from devhost.kubelet import api
from devhost.kubelet.api import api_pb2, podresources_pb2

ROOT = Path(__file__).resolve().parents[2]
UPSTREAM_PACKAGE = "golang-github-kubernetes-kubelet-dev"
UPSTREAM_PROTOS = {
    "api": "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto",
    "podresources": "k8s.io/kubelet/pkg/apis/podresources/v1/api.proto",
}
API = "devhost/kubelet/api/api.proto"
PODRESOURCES = "devhost/kubelet/api/podresources.proto"
NEWER = {"ClaimResource.share_id"}
"""Fields that an older package with the kubelet's protos may lack."""

fetches = pytest.mark.slow
"""Downloads a package first, which takes two minutes where no server answers."""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    return importlib.import_module("generate_protocol")


def test_the_committed_code_is_what_the_generator_writes(generator: ModuleType, tmp_path: Path) -> None:
    outputs = [output for proto in generator.PROTOS for output in generator.outputs(proto)]
    committed = {output: (generator.ROOT / output).read_text() for output in outputs}
    made_with = {text.split("grpcio-tools ")[1].split(".\n")[0] for text in committed.values()}
    assert len(made_with) == 1, "all files come from one run"
    if made_with != {generator.generator()}:
        pytest.skip(f"the code was made with grpcio-tools {made_with}, installed is {generator.generator()}")
    generator.generate(tmp_path)
    assert {output: (tmp_path / output).read_text() for output in outputs} == committed


@pytest.mark.parametrize(("proto", "module"), [(API, api_pb2), (PODRESOURCES, podresources_pb2)])
def test_the_committed_descriptor_matches_the_proto_for_every_generator_version(
    generator: ModuleType, proto: str, module: ModuleType
) -> None:
    committed = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(committed)
    compiled = generator.describe(proto)
    for message in compiled.message_type:
        for field in message.field:
            field.ClearField("json_name")  # protoc fills it in, the generated code leaves it out
        for entry in message.nested_type:
            for field in entry.field:
                field.ClearField("json_name")
    assert committed == compiled


def test_the_generated_code_accepts_the_oldest_runtime_the_project_allows(generator: ModuleType) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    oldest = dict(re.findall(r'"(protobuf)>=([\d.]+)"', project))
    protobuf = ".".join(map(str, generator.OLDEST_PROTOBUF))
    assert _version(protobuf) <= _version(oldest["protobuf"])


def _version(text: str) -> tuple[int, ...]:
    return (*map(int, text.split(".")), 0, 0)[:3]


@fetches
def test_every_message_field_type_and_method_of_the_kubelet_is_in_the_proto(
    generator: ModuleType, tmp_path: Path, upstream: Path
) -> None:
    theirs, ours = _upstream(generator, tmp_path, upstream, "api"), generator.describe(API)
    assert theirs.package == ours.package
    missing = dict(_facts(theirs)).items() - dict(_facts(ours)).items()
    assert not missing, "the kubelet's proto has these, or has them otherwise"


@fetches
def test_the_proto_has_nothing_that_the_kubelets_lacks(generator: ModuleType, upstream: Path) -> None:
    text = _upstream_proto(upstream, "api").read_text()
    for name, _ in _facts(generator.describe(API)):
        assert re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", text), name


@fetches
def test_the_podresources_proto_matches_the_kubelets(
    generator: ModuleType, tmp_path: Path, upstream: Path
) -> None:
    theirs, ours = _upstream(generator, tmp_path, upstream, "podresources"), generator.describe(PODRESOURCES)
    assert theirs.package == ours.package
    surplus = dict(_facts(ours)).items() - dict(_facts(theirs)).items()
    assert {name for name, _ in surplus} <= NEWER - dict(_facts(theirs)).keys()


def test_podresources_has_the_numbers_of_the_published_contract(generator: ModuleType) -> None:
    found = dict(_facts(generator.describe(PODRESOURCES)))
    numbers = {name: int(fact.split()[0]) for name, fact in found.items() if fact[0].isdigit()}
    assert numbers == {
        "ListPodResourcesResponse.pod_resources": 1,
        "PodResources.name": 1,
        "PodResources.namespace": 2,
        "PodResources.containers": 3,
        "ContainerResources.name": 1,
        "ContainerResources.devices": 2,
        "ContainerResources.dynamic_resources": 5,
        "DynamicResource.claim_name": 2,
        "DynamicResource.claim_namespace": 3,
        "DynamicResource.claim_resources": 4,
        "ClaimResource.cdi_devices": 1,
        "ClaimResource.driver_name": 2,
        "ClaimResource.pool_name": 3,
        "ClaimResource.device_name": 4,
        "ClaimResource.share_id": 5,
        "CDIDevice.name": 1,
        "ContainerDevices.resource_name": 1,
        "ContainerDevices.device_ids": 2,
        "AllocatableResourcesResponse.devices": 1,
    }
    assert {"PodResourcesLister.List", "PodResourcesLister.GetAllocatableResources"} <= found.keys()


def _upstream(generator: ModuleType, tmp_path: Path, upstream: Path, name: str) -> FileDescriptorProto:
    """The kubelet's own proto, compiled."""
    # It imports gogoproto for options of its Go generator, which do not affect the wire format.
    text = _upstream_proto(upstream, name).read_text()
    text = re.sub(r'(?m)^import "[^"]*gogo[^"]*";$|^option \(gogoproto\.[^;]*;$', "", text)
    (tmp_path / "upstream.proto").write_text(re.sub(r"\s*\[\s*\(gogoproto\.[^\]]*\]", "", text))
    compiled: FileDescriptorProto = generator.describe("upstream.proto", tmp_path)
    return compiled


def _upstream_proto(package: Path, name: str) -> Path:
    """The kubelet's proto: from Debian's package, or for ``api`` the file named by DEVHOST_UPSTREAM_PROTO."""
    if name == "api" and (given := os.environ.get("DEVHOST_UPSTREAM_PROTO")):
        return Path(given)
    if not package.exists():
        pytest.skip(f"apt-get cannot fetch {UPSTREAM_PACKAGE} here")
    return next(package.rglob(UPSTREAM_PROTOS[name]))


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian's package with the kubelet's protos, unpacked; missing where it cannot be fetched."""
    directory = tmp_path_factory.mktemp("upstream")
    package = directory / "package"
    if shutil.which("apt-get") and shutil.which("dpkg"):
        command = ["apt-get", "download", "-qq", UPSTREAM_PACKAGE]
        fetched = subprocess.run(command, cwd=directory, capture_output=True, timeout=240).returncode == 0
        if fetched and (found := list(directory.glob("*.deb"))):
            subprocess.run(["dpkg", "-x", found[0], package], check=True, timeout=240)
    return package


def _facts(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    """Everything that is visible on the wire or in JSON: name → number, label and type; method → shape."""
    for message in file.message_type:
        yield from _message_facts(message.name, message)
    for service in file.service:
        for method in service.method:
            stream = "stream " if method.server_streaming else ""
            asked = "stream " if method.client_streaming else ""
            yield (
                f"{service.name}.{method.name}",
                f"{asked}{method.input_type} -> {stream}{method.output_type}",
            )


def _message_facts(name: str, message: DescriptorProto) -> Iterator[tuple[str, str]]:
    yield name, "message"
    entries = {f".v1beta1.{name}.{nested.name}": nested for nested in message.nested_type}
    for field in message.field:
        label = FieldDescriptorProto.Label.Name(field.label)
        kind = FieldDescriptorProto.Type.Name(field.type)
        entry = entries.get(field.type_name)
        inner = [FieldDescriptorProto.Type.Name(f.type) for f in entry.field] if entry else field.type_name
        yield f"{name}.{field.name}", f"{field.number} {label} {kind} {inner}"


def test_the_protocol_imports_without_a_warning() -> None:
    done = completed(sys.executable, "-W", "error", "-c", "import devhost_testing.api.api_pb2_grpc")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_constants_are_those_of_the_kubelet() -> None:
    assert (api.VERSION, api.HEALTHY, api.UNHEALTHY) == ("v1beta1", "Healthy", "Unhealthy")
    assert (api.KUBELET_SOCKET, api.CHECKPOINT) == ("kubelet.sock", "kubelet_internal_checkpoint")
    assert (api.RECEIVE_LIMIT, api.PRE_START_DEADLINE) == (4194304, 30.0)
