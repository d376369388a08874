"""``devhost check``: checks configuration files before anything starts."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from devhost.backend.errors import ConfigError, Diagnostic, counted
from devhost.backend.frozen import frozen
from devhost.config import loads, read
from devhost.config.diagnostics import Diagnostics
from devhost.config.document import Fields, Items, parse_all, read_standard_input
from devhost.discovery import catalog
from devhost.planning.settings import Profile, Serve, Settings

from . import options as shared

_WORDS = {
    "akri": r"akri\.sh/|\bchart:\s*[\"']?akri\b",
    "intel-device-plugins": r"deviceplugin\.intel\.com/|\bintel-(dlb|dsa|fpga|gpu|iaa|npu|qat|sgx)-plugin\b"
    r"|\bintel-device-plugins-|\bintel\.feature\.node\.kubernetes\.io/",
    "kubevirt": r"\b(permittedHostDevices|pciHostDevices|mediatedDevices|mediatedDevicesTypes)\b",
    "sriov-network-device-plugin": r"\b(resourceList|sriovDevicePlugin)\b|/sriov-network-device-plugin\b"
    r"|\bsriovnetwork\.openshift\.io/",
    "rdma-shared-dev-plugin": r"\b(configList|pfNetdevices|rdmaSharedDevicePlugin)\b"
    r"|/k8s-rdma-shared-dev-plugin\b",
    "smarter-device-manager": r"\bdevicematch\b",
    "amd-device-plugin": r"\bamd\.com/v1alpha1\b|\brocm/k8s-device-plugin\b"
    r"|\brocm\.github\.io/|\bchart:\s*[\"']?(amd-gpu|gpu-operator-charts)\b",
    "gke-device-plugin": r"\bGPU(PartitionSize|SharingConfig)\b|\bMaxTimeSharedClientsPerGPU\b"
    r"|\bHealthCriticalXid\b|/(nvidia-gpu-device-plugin|device-plugin-gpu)\b",
    "nvidia-device-plugin": r"\bmigStrategy\b|\btimeSlicing\b|\bdevice(ListStrategy|IDStrategy)\b|\bmps:"
    r"|\bfailOnInitError\b|\bnvidiaDriverRoot\b|/nvidia/k8s-device-plugin\b|\bnvidia\.com/v1\b"
    r"|\bchart:\s*[\"']?(gpu-operator|nvidia-device-plugin)\b|\bmigManager:"
    r"|\bnvidia-device-plugin-(ctr|daemonset)\b",
    "generic-device-plugin": r"/generic-device-plugin\b|(?s:\bgroups[\"']?:.*\bpaths?[\"']?:)",
}
"""By the name of the importer: keys, API groups and images. The most particular ones come first."""

# keys that only a configuration of devhost has; that of the NVIDIA plugin has a mapping in resources
_OWN = re.compile(r"""(?m)(^|[{,]\s*)"?(backends|backendPaths)"?\s*:|^resources:\s*(\[|-\s)""")
_COMMENT = re.compile(r"(?m)(^|\s)#.*$")


class _Catalogs:
    """Makes the catalog for each file, and keeps the plugins that were refused."""

    def __init__(self) -> None:
        self.refused: dict[catalog.Refusal, None] = {}

    def __call__(self, paths: Sequence[Path], _wanted: Collection[str]) -> catalog.Catalog:
        found = catalog.load(paths)
        self.refused.update(dict.fromkeys(found.refused))
        return found


@click.command(
    help="""
    Checks configuration files. "-" reads standard input.

    Prints one line for each valid file, and every error of the others with its line and column. For the file
    of another device plugin, it names the import that converts it. A plugin
    that cannot be loaded causes a warning, or an error if a resource needs it. A note names optional entries
    whose backend is not installed, and what an option needs of the node.
    """
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@shared.output_of("text", "json", help="Text for people, or one JSON document for all files.")
def command(files: tuple[str, ...], output: str) -> None:
    catalogs = _Catalogs()
    checked = [_Checked.of(file, catalogs) for file in files]
    if output == "json":
        refused = [{"origin": one.origin, "reason": one.reason} for one in catalogs.refused]
        document = {"files": [one.document() for one in checked], "refusedPlugins": refused}
        click.echo(json.dumps(document, indent=2))
    else:
        for one in checked:
            one.show()
        shared.warn_of(catalogs.refused)
    if any(one.settings is None for one in checked):
        sys.exit(ConfigError.exit_code)


@frozen
class _Checked:
    """A file with its settings, or with what is wrong with it."""

    file: str
    settings: Settings | None
    errors: Sequence[Diagnostic] = ()

    @classmethod
    def of(cls, file: str, catalogs: _Catalogs) -> _Checked:
        data = b""
        try:
            data = _content(file)
            return cls(_label(file), loads(data, _label(file), catalogs))
        except ConfigError as error:
            plugins = importers_of(data)
            return cls(_label(file), None, [_other(file, plugins)] if plugins else error.diagnostics)

    def show(self) -> None:
        for error in self.errors:
            click.echo(str(error), err=True)
        if self.settings is not None:
            click.echo(f"{self.file}: ok ({_count(self.settings)})")
            for note in self._notes(self.settings):
                click.echo(f"note: {note}", err=True)

    def document(self) -> dict[str, Any]:
        """All of it, in the terms of JSON."""
        errors = [asdict(error) for error in self.errors]
        if self.settings is None:
            return {"file": self.file, "valid": False, "errors": errors}
        return {
            "file": self.file,
            "valid": True,
            "errors": errors,
            "notes": list(self._notes(self.settings)),
            "resources": len(self.settings.resources),
            "backends": list(self.settings.backends),
        }

    @staticmethod
    def _notes(settings: Settings) -> Iterator[str]:
        for backend, hint in settings.not_installed().items():
            count = sum(entry.backend == backend for entry in settings.skipped)
            entries = "1 optional entry is" if count == 1 else f"{count} optional entries are"
            yield f"{entries} not served: backend {backend} is not installed ({hint})"
        for name, options in settings.backends.items():
            yield from (f"backends.{name}.{note}" for note in getattr(options, "notes", ()))
        for entry in settings.resources:
            if entry.driver and (profile := entry.dra.profile):
                from devhost.planning.profiles import PROFILES  # only where it is used

                if (usual := PROFILES[profile].driver) not in ("", entry.driver):
                    reader = "dcgm-exporter" if profile is Profile.NVIDIA else "a DeviceClass"
                    yield (
                        f"resources[{entry.index}].dra.profile: what reads these names, such as {reader}, "
                        f"looks for the driver {usual}, not {entry.driver}"
                    )


def _content(file: str) -> bytes:
    return read_standard_input(Diagnostics(_label(file))) if file == "-" else read(Path(file))


def importers_of(data: bytes) -> Sequence[str]:
    """The importers for a file of another plugin, by the words that only that plugin has.

    There are none for text that is no YAML file.
    """
    try:
        roots = parse_all(data, Diagnostics(""), if_empty="")
    except ConfigError:
        return ()
    if not any(isinstance(root, Fields | Items) for root in roots):
        return ()
    text = _COMMENT.sub("", data.decode(errors="replace"))
    if _OWN.search(text):
        return []
    found = [name for name, words in _WORDS.items() if re.search(words, text)]
    # an object of the NVIDIA network operator may carry the settings of both plugins for adapters
    adapters = [name for name in found if name.startswith(("sriov-", "rdma-"))]
    return adapters if found and found[0] in adapters else found[:1]


def _other(file: str, plugins: Sequence[str]) -> Diagnostic:
    """The error for the configuration of another plugin."""
    commands = " or ".join(f"`devhost import {name} {shlex.quote(file)}`" for name in plugins)
    what = f"this is the configuration of {' and '.join(plugins)}, not of devhost"
    return Diagnostic(_label(file), 0, 0, "", what, f"run {commands}")


def _label(file: str) -> str:
    return "<stdin>" if file == "-" else file


def _count(settings: Settings) -> str:
    served = sum(entry.serve is Serve.DRA for entry in settings.resources)
    claims = f", {served} of them with serve: dra" if served else ""
    backends = counted(len(settings.backends), "backend")
    return f"{counted(len(settings.resources), 'resource')}{claims}, {backends}"
