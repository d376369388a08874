"""Generates the Python code of the kubelet's protocols: device plugins, podresources and DRA.

    python tools/generate_protocol.py             # writes next to the proto files
    python tools/generate_protocol.py DIRECTORY   # writes the same paths below DIRECTORY

Requires grpcio-tools. In addition to the output of protoc, the result
 - names the generator in its first line, so that a test knows when a comparison must be exact;
 - requires the oldest runtime that this project supports, not the generator's version;
 - has types for the asyncio variant of the gRPC stubs, for which protoc has no generator; the stubs are made
   from the descriptors when they are imported.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto
from grpc_tools import protoc  # type: ignore[import-untyped]  # it ships no annotations

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PROTOS = (
    "devhost/kubelet/api/api.proto",
    "devhost/kubelet/api/podresources.proto",
    "devhost/dra/api/dra_v1.proto",
    "devhost/dra/api/health_v1.proto",
    "devhost/dra/api/registration.proto",
)

# The generated code works with this release (the oldest allowed in pyproject.toml), but a generator always
# requires a runtime at least as new as itself.
OLDEST_PROTOBUF = (6, 31, 0)

STUBS = "packages/testing/src/devhost_testing/api"
"""Where the classes of services go: devhost itself names the methods that it serves and calls."""


def outputs(proto: str) -> tuple[str, ...]:
    """The files generated from ``proto``, relative to the repository."""
    stem = f"src/{proto.removesuffix('.proto')}"
    stubs = f"{STUBS}/{Path(stem).name}"
    return (f"{stem}_pb2.py", f"{stem}_pb2.pyi", f"{stubs}_pb2_grpc.py", f"{stubs}_pb2_grpc.pyi")


class GenerationError(Exception):
    """protoc refused its input; its message is on stderr."""


def generator() -> str:
    """The installed version of grpcio-tools."""
    return importlib.metadata.version("grpcio-tools")


def describe(proto: str, root: Path = SOURCE) -> FileDescriptorProto:
    """The declarations in ``proto`` (relative to ``root``).

    Raises:
        GenerationError: it does not compile.
    """
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch, "set")
        _protoc(root, f"--descriptor_set_out={result}", proto=proto)
        return FileDescriptorSet.FromString(result.read_bytes()).file[0]


def generate(target: Path) -> None:
    """Writes four files for each proto below ``target``.

    Raises:
        GenerationError: a proto does not compile.
    """
    source = target / "src"
    source.mkdir(exist_ok=True)
    (target / STUBS).mkdir(parents=True, exist_ok=True)
    flags = [f"--{kind}_out={source}" for kind in ("python", "pyi")]
    for proto in PROTOS:
        _protoc(SOURCE, *flags, proto=proto)
        stem, name = proto.removesuffix(".proto"), Path(proto).name
        *_, stubs, types = outputs(proto)
        (target / stubs).write_text("\n".join(_grpc_stubs(stem)) + "\n")
        (target / types).write_text("\n".join(_grpc_types(stem, describe(proto))) + "\n")
        for output in outputs(proto):
            file = target / output
            file.write_text(_with_header(name, _with_oldest_runtime(file.read_text()), file.suffix))


def _protoc(root: Path, *flags: str, proto: str) -> None:
    if protoc.main(["protoc", f"-I{root}", *flags, proto]):
        raise GenerationError(proto)


def _with_header(proto: str, text: str, suffix: str) -> str:
    first = f"# Generated from {proto} with grpcio-tools {generator()}."
    exempt = "# ruff: noqa: E501\n" if suffix == ".pyi" else ""
    return f"{first}\n# fmt: off\n{exempt}{text}"


def _with_oldest_runtime(text: str) -> str:
    major, minor, patch = OLDEST_PROTOBUF
    text = re.sub(
        r"(?m)^# Protobuf Python Version: .*$", f"# Protobuf Python Version: {major}.{minor}.{patch}", text
    )
    return re.sub(
        r"(Domain\.PUBLIC,)\s+\d+,\s+\d+,\s+\d+,", rf"\1\n    {major},\n    {minor},\n    {patch},", text
    )


def _grpc_stubs(stem: str) -> Iterator[str]:
    package, _, name = stem.replace("/", ".").rpartition(".")
    yield f'"""The classes of the services in ``{name}.proto``."""'
    yield ""
    yield f"from {package} import {name}_pb2"
    yield f"from {STUBS.replace('/', '.').partition('.src.')[2]}.services import classes"
    yield ""
    yield f"globals().update(classes({name}_pb2))"


def _grpc_types(stem: str, file: FileDescriptorProto) -> Iterator[str]:
    package, _, name = stem.replace("/", ".").rpartition(".")
    messages = f"{name}_pb2"
    if any(method.server_streaming for service in file.service for method in service.method):
        yield "from collections.abc import AsyncIterator"
        yield ""
    yield "import grpc.aio"
    yield ""
    yield f"from {package} import {messages}"
    for service in file.service:
        yield ""
        yield f"class {service.name}Stub:"
        yield "    def __init__(self, channel: grpc.aio.Channel) -> None: ..."
        for method in service.method:
            kind = "UnaryStreamMultiCallable" if method.server_streaming else "UnaryUnaryMultiCallable"
            yield f"    {method.name}: grpc.aio.{kind}[{_types(messages, method)}]"
        yield ""
        yield f"class {service.name}Servicer:"
        for method in service.method:
            asked, answer = _types(messages, method).split(", ")
            define = "def" if method.server_streaming else "async def"
            returns = f"AsyncIterator[{answer}]" if method.server_streaming else answer
            context = f"grpc.aio.ServicerContext[{asked}, {answer}]"
            yield f"    {define} {method.name}(self, request: {asked}, context: {context}) -> {returns}: ..."
        yield ""
        yield f"def add_{service.name}Servicer_to_server("
        yield f"    servicer: {service.name}Servicer, server: grpc.aio.Server"
        yield ") -> None: ..."


def _types(module: str, method: MethodDescriptorProto) -> str:
    """Request and response of a method as Python names: ``.v1beta1.Empty`` is ``api_pb2.Empty``."""
    names = (method.input_type, method.output_type)
    return ", ".join(f"{module}.{name.rpartition('.')[2]}" for name in names)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
