"""Imports that keep the memory of a long-running process small."""

from __future__ import annotations

import subprocess
import sys


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    return done.stdout.strip()


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
