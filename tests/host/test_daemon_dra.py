"""What `devhost run` knows for Dynamic Resource Allocation: options, their defaults, and refusals."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kit.command import completed

from devhost.backend.errors import ConfigError
from devhost.config.loader import Copied, Loaded
from devhost.discovery.catalog import Catalog
from devhost.host import daemon
from devhost.host.host import KUBELET_DIRECTORY
from devhost.planning.settings import DraOptions, ResourceSettings, Serve, Settings
from devhost.runtime.sockets import MAX_PATH

DRIVER = "devhost.example.com"
LOADED = Loaded(Settings(dra_driver=DRIVER), Catalog())
SERVED = replace(
    LOADED,
    settings=Settings(
        (ResourceSettings(2, "example.com/card", "toy", serve=Serve.DRA, driver=DRIVER),),
        dra_driver=DRIVER,
    ),
)
NODE = DraOptions(Path("/k/plugins_registry"), Path("/k/plugins"), "node-1")


def refusal(loaded: Loaded, dra: DraOptions) -> str:
    with pytest.raises(ConfigError) as caught:
        daemon.check_dra(loaded, daemon.Options(Path("/etc/d.yaml"), dra=dra))
    return str(caught.value)


def test_the_directories_are_those_of_the_kubelet_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "node-7")

    found = daemon.dra_options(KUBELET_DIRECTORY)

    assert found == DraOptions(
        Path("/var/lib/kubelet/plugins_registry"), Path("/var/lib/kubelet/plugins"), "node-7"
    )
    assert found.registration_socket("d.e") == Path("/var/lib/kubelet/plugins_registry/d.e-reg.sock")
    assert found.service_socket("d.e") == Path("/var/lib/kubelet/plugins/d.e/dra.sock")


def test_the_directories_are_beside_another_kubelet_directory(tmp_path: Path) -> None:
    found = daemon.dra_options(tmp_path / "device-plugins")

    assert (found.plugins_registry, found.plugins_dir) == (
        tmp_path / "plugins_registry",
        tmp_path / "plugins",
    )


@pytest.mark.conformance(109)
def test_what_the_command_line_names_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "other")
    named = DraOptions(Path("/r"), Path("/p"), "node-1", Path("/kube.conf"))

    found = daemon.dra_options(
        KUBELET_DIRECTORY, named.plugins_registry, named.plugins_dir, named.node, named.kubeconfig
    )

    assert found == named


def test_without_a_name_the_node_is_called_as_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "")

    assert daemon.dra_options(KUBELET_DIRECTORY).node == socket.gethostname().strip().lower()


def test_a_relative_directory_is_made_absolute_because_the_kubelet_has_another_one() -> None:
    found = daemon.dra_options(Path("kubelet/device-plugins"), plugins_dir=Path("plugins"))

    assert (found.plugins_registry, found.plugins_dir) == (
        Path.cwd() / "kubelet/plugins_registry",
        Path.cwd() / "plugins",
    )


def test_a_driver_that_can_be_served_is_accepted() -> None:
    assert daemon.check_dra(LOADED, daemon.Options(dra=NODE)) is LOADED
    longest = Loaded(Settings(dra_driver="d" * 63), Catalog())
    options = daemon.Options(dra=daemon.dra_options(KUBELET_DIRECTORY, node="node-1"))
    assert daemon.check_dra(longest, options) is longest


@pytest.mark.conformance(70)
@pytest.mark.parametrize("option", ["plugins_registry", "plugins_dir"])
def test_a_socket_with_too_long_a_path_is_refused_and_the_longest_is_not(option: str) -> None:
    rest = {"plugins_registry": f"/{DRIVER}-reg.sock", "plugins_dir": f"/{DRIVER}/dra.sock"}[option]
    longest = Path("/" + "é" * 20 + "x" * (MAX_PATH - 41 - len(rest)))
    fits = replace(NODE, **{option: longest})
    assert daemon.check_dra(LOADED, daemon.Options(dra=fits)) is LOADED

    said = refusal(LOADED, replace(NODE, **{option: Path(f"{longest}y")}))

    assert said == (
        f"/etc/d.yaml: dra.driver: the socket {longest}y{rest} would have a path of 108 bytes, and "
        f"Linux allows 107 (choose a shorter driver name or --{option.replace('_', '-')})"
    )


@pytest.mark.parametrize("node", ["", "Node_1", "a/b", "n" * 254])
def test_a_node_name_that_kubernetes_cannot_have_is_refused(node: str) -> None:
    said = refusal(LOADED, replace(NODE, node=node))

    assert said == (
        f"/etc/d.yaml: dra.driver: {node[:80]!r} is not the name of a node in Kubernetes "
        "(give it with --node-name NAME or in NODE_NAME)"
    )


def test_a_refusal_of_the_copy_names_the_copy() -> None:
    copied = replace(LOADED, copied=Copied(Path("/var/copy.yaml"), "2026-11-20T10:00:00Z", ()))

    assert refusal(copied, replace(NODE, node="")).startswith("/var/copy.yaml: dra.driver: ")


def test_nothing_is_checked_for_a_file_without_dra() -> None:
    plain = Loaded(Settings(), Catalog())

    assert daemon.check_dra(plain, daemon.Options(dra=replace(NODE, node=""))) is plain


def test_a_driver_without_access_to_the_api_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    assert refusal(SERVED, NODE) == (
        "/etc/d.yaml: dra: no access to the API server: KUBERNETES_SERVICE_HOST is not set, so the API "
        "server is unknown (run devhost in a pod, or give --kubeconfig FILE)"
    )


def test_a_missing_kubeconfig_does_not_keep_the_device_plugin_from_starting(tmp_path: Path) -> None:
    dra = replace(NODE, plugins_dir=tmp_path, kubeconfig=tmp_path / "kubeconfig")

    assert daemon.check_dra(SERVED, daemon.Options(dra=dra)) is SERVED


@pytest.mark.conformance(117)
def test_nothing_of_the_driver_is_imported_without_a_resource_that_needs_it() -> None:
    """It would cost every node its memory."""
    code = (
        "import sys, devhost.host.daemon, devhost.host.host\n"
        "print([name for name in sys.modules if name.startswith('devhost.dra')])"
    )
    done = completed(sys.executable, "-c", code)
    assert done.stdout == "[]\n"
