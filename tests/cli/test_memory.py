"""Imports that keep the memory of a long-running process small."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from devhost_testing.kubelet import KubeletSimulator
from kit.command import completed

DEFAULT = Path(__file__).parents[2] / "config/devhost.yaml"


def _run(code: str) -> str:
    return completed(sys.executable, "-c", code, check=True).stdout.strip()


def test_grpc_works_without_typing_extensions_and_others_still_get_it() -> None:
    shown = _run(
        "import sys\n"
        "from devhost.cli.memory import import_grpc_without_typing_extensions as imported\n"
        "imported()\n"
        "import grpc.aio\n"
        "print(grpc.aio.Metadata(('a', 'b'))['a'], 'typing_extensions' in sys.modules)\n"
        "import typing_extensions\n"
        "print(typing_extensions.__file__.endswith('typing_extensions.py'))\n"
    )
    assert shown.splitlines() == ["b False", "True"]


def test_a_name_that_typing_lacks_comes_from_typing_extensions() -> None:
    shown = _run(
        "import sys\n"
        "from devhost.cli.memory import TypingExtensions\n"
        "sys.modules['typing_extensions'] = TypingExtensions('typing_extensions')\n"
        "from typing_extensions import Self, deprecated, get_original_bases\n"
        "import typing\n"
        "print(Self is typing.Self, deprecated.__module__, get_original_bases.__module__)\n"
    )
    assert shown.startswith("True ")


def test_messages_work_without_those_that_are_written_in_python_and_others_still_get_them() -> None:
    shown = _run(
        "import sys\n"
        "from devhost.cli.memory import import_protobuf_without_python_messages as imported\n"
        "imported()\n"
        "from devhost.kubelet.api import api_pb2 as pb\n"
        "device = pb.Device.FromString(pb.Device(ID='a', health='Healthy').SerializeToString())\n"
        "print(device.ID, str(device).split(), 'google.protobuf.text_format' in sys.modules)\n"
        "from google.protobuf import json_format, text_format\n"
        "print(json_format.MessageToDict(device), text_format.MessageToString(device).split())\n"
        "from google.protobuf.internal import python_message\n"
        "print(python_message.GeneratedProtocolMessageType.__name__)\n"
    )
    text = "['ID:', '\"a\"', 'health:', '\"Healthy\"']"
    assert shown.splitlines() == [
        f"a {text} False",
        f"{{'ID': 'a', 'health': 'Healthy'}} {text}",
        "GeneratedProtocolMessageType",
    ]


def test_a_pattern_that_is_compiled_late_matches_and_others_are_compiled_at_once() -> None:
    shown = _run(
        "import re\n"
        "from devhost.cli.memory import late_patterns\n"
        "try:\n"
        "    with late_patterns():\n"
        "        import yaml\n"
        "        late = re.compile('A+', re.IGNORECASE)\n"
        "        raise KeyError\n"
        "except KeyError:\n"
        "    print(type(re.compile('a')).__name__)\n"
        "print(late.fullmatch('aa')[0], late.pattern, [late.sub('b', text) for text in ('aa', 'ac')])\n"
        "for Loader in (yaml.SafeLoader, yaml.CSafeLoader):\n"
        "    print(yaml.load('{a: [1, 1.5, no, 2001-01-01, ~, text, 0x1F]}', Loader))\n"
    )
    read = "{'a': [1, 1.5, False, datetime.date(2001, 1, 1), None, 'text', 31]}"
    assert shown.splitlines() == ["Pattern", "aa A+ ['b', 'bc']", read, read]


def test_a_rare_module_is_imported_when_it_is_used_and_not_before() -> None:
    shown = _run(
        "import sys\n"
        "from devhost.cli.memory import defer_rare_modules\n"
        "defer_rare_modules()\n"
        "import shutil\n"
        "from asyncio import sslproto\n"
        "print('bz2' in sys.modules, shutil.which('sh') is not None, 'bz2' in sys.modules)\n"
        "print(sys.modules['shutil'].__spec__.name, sslproto.SSLProtocol.__name__)\n"
    )
    assert shown.splitlines() == ["False True True", "shutil SSLProtocol"]


def test_code_that_looks_for_a_rare_module_finds_it_and_does_not_import_it() -> None:
    shown = _run(
        "import sys\n"
        "from importlib.util import find_spec\n"
        "from devhost.cli.memory import TypingExtensions, defer_rare_modules\n"
        "defer_rare_modules()\n"
        "sys.modules['typing_extensions'] = TypingExtensions('typing_extensions')\n"
        "names = 'shutil', 'h11', 'asyncio.sslproto', 'typing_extensions'\n"
        "specs = [find_spec(name) for name in names]\n"
        "print([spec.name for spec in specs], specs[0].origin.endswith('shutil.py'))\n"
        "print({type(sys.modules[name]).__module__ for name in names})\n"
    )
    names = ["shutil", "h11", "asyncio.sslproto", "typing_extensions"]
    assert shown.splitlines() == [f"{names} True", "{'devhost.cli.memory'}"]


def test_code_that_imports_parts_of_a_rare_module_or_sets_its_names_gets_the_module() -> None:
    shown = _run(
        "import sys\n"
        "from devhost.cli.memory import defer_rare_modules\n"
        "defer_rare_modules()\n"
        "from h11._headers import Headers\n"
        "import h11._util, h11\n"
        "head = h11.Request(method='GET', target='/', headers=[('Host', 'a')])\n"
        "print(h11._headers.Headers is Headers, type(head.headers) is Headers)\n"
        "print(h11._util.RemoteProtocolError is h11.RemoteProtocolError)\n"
        "import tempfile\n"
        "tempfile.tempdir = '/nowhere'\n"
        "print(tempfile.gettempdir())\n"
        "from textwrap import *\n"
        "print(dedent('  a'))\n"
    )
    assert shown.splitlines() == ["True True", "True", "/nowhere", "a"]


FIRST_CONNECTION = """
import asyncio, os, sys, threading
from devhost.cli.memory import defer_rare_modules
defer_rare_modules()
from devhost.runtime import log
from devhost.runtime.http import HttpServer, Listen, probe

class Full:
    left = 1
    def find_spec(self, name, *more):
        if name == "h11._readers" and self.left:
            self.left -= 1
            print(threading.current_thread() is threading.main_thread())
            raise OSError(24, "Too many open files")
        return None

def loaded():
    return type(sys.modules["h11"]).__name__ == "module"

async def main():
    os.dup2(1, 2)
    log.configure()
    sys.meta_path.insert(0, Full())
    server = HttpServer({"/healthz": probe(lambda: (True, ""))})
    at = await server.start(Listen("127.0.0.1", 0))
    print(loaded())
    for _ in range(2):
        reader, writer = await asyncio.open_connection(at.host, at.port)
        writer.write(b"GET /healthz HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
        try:
            print((await reader.read()).decode().partition("\\r\\n")[0])
        except ConnectionError:
            print("")
        writer.close()
    print(loaded())
    await server.stop()

asyncio.run(main())
"""


def test_the_parser_of_http_is_imported_for_a_connection_that_leaves_a_descriptor_for_it() -> None:
    assert _run(FIRST_CONNECTION).splitlines() == ["False", "False", "", "HTTP/1.1 200 OK", "True"]


WITHOUT_PARSER = """
import asyncio, os, sys
from devhost.cli.memory import defer_rare_modules
defer_rare_modules()
from devhost.runtime import log
from devhost.runtime.http import HttpServer, Listen, probe

class Gone:
    def find_spec(self, name, *more):
        if name == "h11._readers":
            raise ModuleNotFoundError("No module named 'h11'")
        return None

async def main():
    os.dup2(1, 2)
    log.configure()
    sys.meta_path.insert(0, Gone())
    server = HttpServer({"/healthz": probe(lambda: (True, ""))})
    at = await server.start(Listen("127.0.0.1", 0))
    for _ in range(2):
        reader, writer = await asyncio.open_connection(at.host, at.port)
        writer.write(b"GET /healthz HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
        head, _, body = (await reader.read()).decode().partition("\\r\\n\\r\\n")
        print(head.partition("\\r\\n")[0], "|", body.partition(" (")[0], flush=True)
        writer.close()
    await server.stop()

asyncio.run(main())
"""


def test_a_probe_fails_with_the_reason_when_the_parser_of_http_was_removed() -> None:
    logged, *answers = _run(WITHOUT_PARSER).splitlines()
    reason = "code cannot be imported: No module named 'h11'"
    assert answers == [f"HTTP/1.1 500 Internal Server Error | {reason}"] * 2
    assert " requests cannot be answered reason=" in logged


RARE = (
    *("click", "fractions", "ipaddress", "shlex", "ssl", "tempfile"),
    *("devhost.allocation.cdi.injector", "devhost.allocation.preferred", "devhost.planning.affinity"),
    *("devhost.config.amounts", "devhost.config.difference"),
    *("devhost.config.rollout", "devhost.discovery.handover", "devhost.discovery.usage", "devhost.dra"),
    *("devhost.host.shown.status", "devhost.planning.counters", "devhost.planning.give.edits"),
    *("devhost.planning.profiles", "devhost.planning.sides", "devhost.runtime.turns"),
    *("devhost.telemetry.document", "devhost.telemetry.page.content", "devhost_neuron"),
    *("devhost_gpu.nvidia", "devhost_udev.groups", "devhost_udev.members"),
)
"""Modules that a node with the default configuration does not need."""

LOADED = """
import gc, os, sys

def leave(code):
    names = [name for name, module in sys.modules.items() if type(module).__name__ != "Deferred"]
    print(*names, *(["collects garbage"] if gc.get_threshold() == usual else []), sep="\\n", flush=True)
    end(code)

end, os._exit = os._exit, leave
usual = gc.get_threshold()
from devhost.cli import main
main()
"""
"""Runs devhost, which prints at its end which modules it has imported, and whether it collects garbage."""


async def test_with_the_default_configuration_a_node_imports_nothing_for_rare_features(
    tmp_path: Path,
) -> None:
    for directory in ("sys/bus", "sys/class", "sys/devices", "dev", "proc"):
        (tmp_path / "root" / directory).mkdir(parents=True)
    async with KubeletSimulator(tmp_path / "kubelet") as kubelet:
        command = ["--config", str(DEFAULT), "--root", str(tmp_path / "root"), "--listen", "127.0.0.1:0"]
        command += ["--kubelet-dir", str(kubelet.directory), "--state-dir", str(tmp_path / "state")]
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-c",
                LOADED,
                "run",
                *command,
                "--status-socket",
                str(tmp_path / "status.sock"),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        async with asyncio.timeout(120):
            port = 0
            async for line in process.stderr:
                text = line.decode()
                port = int(text.rpartition(":")[2]) if " listening address=" in text else port
                if "entry has no devices entry=resources[20] " in text:
                    break
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: devhost\r\n\r\n")
            assert b"devhost_build_info" in await reader.read()
            writer.close()
            process.terminate()
            printed, _ = await process.communicate()
    seen = {*printed.decode().splitlines()}
    assert {"devhost.host.host", "devhost_gpu", "devhost_udev.scan", "collects garbage"} <= seen
    assert seen.isdisjoint(RARE)
