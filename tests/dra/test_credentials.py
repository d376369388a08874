"""Where the API server is, and whom to trust: from a pod or a kubeconfig file. Each refusal is one line."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.dra.access import kubeconfig_text

from devhost.backend.errors import EnvironmentFailure
from devhost.dra.credentials import in_cluster, kubeconfig

TLS = Path(__file__).parent / "tls"
AUTHORITY = (TLS / "authority.pem").read_bytes()
SERVICE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def mounted(directory: Path) -> Path:
    (directory / "token").write_text("secret\n")
    (directory / "ca.crt").write_bytes(AUTHORITY)
    return directory


async def test_a_pod_uses_its_mounted_token(tmp_path: Path) -> None:
    found = in_cluster(SERVICE, mounted(tmp_path))
    assert (found.server, found.host, found.port) == ("https://10.0.0.1:6443", "10.0.0.1", 6443)
    assert found.token == "secret"


def test_an_ipv6_address_is_bracketed(tmp_path: Path) -> None:
    found = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}, mounted(tmp_path))
    assert (found.server, found.host, found.authority) == (
        "https://[fd00::1]:443",
        "fd00::1",
        "[fd00::1]:443",
    )


def test_a_process_outside_a_pod_gets_a_hint(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="KUBERNETES_SERVICE_HOST is not set") as caught:
        in_cluster({}, tmp_path)
    assert "--kubeconfig" in str(caught.value)


def test_a_pod_without_a_mounted_token_gets_a_hint(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="automountServiceAccountToken"):
        in_cluster(SERVICE, tmp_path)
    (mounted(tmp_path) / "ca.crt").write_text("no certificate")
    with pytest.raises(EnvironmentFailure, match="holds no certificate"):
        in_cluster(SERVICE, tmp_path)


def config(directory: Path, user: dict[str, Any], **cluster: Any) -> Path:
    file = directory / "kubeconfig"
    file.write_text(kubeconfig_text({"server": "https://api.example.com/prefix/", **cluster}, user))
    return file


CA = {"certificate-authority-data": base64.b64encode(AUTHORITY).decode()}


async def test_a_kubeconfig_with_a_token_is_used(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(AUTHORITY)
    (tmp_path / "token").write_text("from-file\n")
    found = kubeconfig(config(tmp_path, {"tokenFile": "token"}, **{"certificate-authority": "ca.pem"}))
    assert (found.host, found.port, found.path) == ("api.example.com", 443, "/prefix")
    assert found.token == "from-file"
    assert kubeconfig(config(tmp_path, {"token": "inline"}, **CA)).token == "inline"


def test_a_client_certificate_is_used(tmp_path: Path) -> None:
    user = {
        "client-certificate-data": base64.b64encode((TLS / "server.pem").read_bytes()).decode(),
        "client-key": str(TLS / "server.key"),
    }
    assert kubeconfig(config(tmp_path, user, **CA)).tls is not None


INVALID = "a certificate or key in it is not valid"
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "exec": ({"exec": {"command": "login"}}, CA, "its user needs exec, which devhost does not support"),
    "insecure": ({}, {"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify is set"),
    "no authority": ({}, {}, "its cluster has no certificate-authority"),
    "no URL": ({}, {**CA, "server": "api.example.com"}, "is no URL"),
    "no such file": ({}, {"certificate-authority": "none.pem"}, "cannot be read: No such file"),
    "not base64": ({}, {"certificate-authority-data": "!"}, INVALID),
    "no key": ({"client-certificate": str(TLS / "server.pem")}, CA, INVALID),
    "empty authority": ({}, {"certificate-authority": "empty"}, "its certificate-authority is empty"),
    "blank authority": (
        {},
        {"certificate-authority-data": base64.b64encode(b"\n").decode()},
        "its certificate-authority is empty",
    ),
    "key with a password": (
        {
            "client-certificate": str(TLS / "server.pem"),
            "client-key": str(TLS / "server-encrypted.key"),
        },
        CA,
        INVALID,
    ),
    "impersonation": ({"as": "admin"}, CA, "its user needs as, which devhost does not support"),
    "password": ({"username": "u", "password": "p"}, CA, "its user needs username"),
    "proxy": ({}, {**CA, "proxy-url": "http://proxy"}, "its cluster needs proxy-url"),
    "plain HTTP": ({"token": "t"}, {"server": "http://api.example.com"}, "would get the token without TLS"),
    "bad port": ({}, {**CA, "server": "https://api.example.com:port"}, "is no URL"),
    "bad address": ({}, {**CA, "server": "https://[api"}, "is no URL"),
    "missing token": ({"tokenFile": "none"}, CA, "none cannot be read: No such file or directory"),
    "empty token": ({"tokenFile": "empty"}, CA, "its user's token is not valid"),
    "token of two lines": ({"token": "a\nb"}, CA, "its user's token is not valid"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_or_would_trust_or_send_too_much_is_refused_in_one_line(
    tmp_path: Path, case: str
) -> None:
    user, cluster, text = REFUSED[case]
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(EnvironmentFailure, match=text) as caught:
        kubeconfig(config(tmp_path, user, **cluster))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("content", [None, "a: [", "- 1", "{}", "{current-context: x, contexts: [1]}"])
def test_a_file_that_is_no_kubeconfig_is_refused_in_one_line(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    with pytest.raises(EnvironmentFailure) as caught:
        kubeconfig(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["clusters: 5", "{current-context: x, contexts: {x: 1}}"])
def test_sections_of_another_type_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(EnvironmentFailure, match="has no context"):
        kubeconfig(tmp_path / "config")


async def test_a_token_file_wins_over_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    found = kubeconfig(config(tmp_path, {"token": "inline", "tokenFile": "token"}, **CA))
    assert found.token == "from-file"


def test_only_the_given_authority_is_trusted(tmp_path: Path) -> None:
    file, folded = str(TLS / "authority.pem"), base64.encodebytes(AUTHORITY).decode()
    for cluster in ({"certificate-authority": file}, {"certificate-authority-data": folded}):
        tls = kubeconfig(config(tmp_path, {}, **cluster)).tls
        assert tls is not None
        assert [len(tls.get_ca_certs()), tls.check_hostname] == [1, True]


def test_plain_http_is_for_a_proxy_on_this_machine(tmp_path: Path) -> None:
    found = kubeconfig(config(tmp_path, {}, server="http://127.0.0.1:8001"))
    assert (found.host, found.port, found.tls) == ("127.0.0.1", 8001, None)


@pytest.mark.parametrize(("port", "token"), [("port", "t"), ("443", ""), ("443", "a b"), ("443", "ä")])
def test_a_pod_with_a_wrong_address_or_token_is_refused(tmp_path: Path, port: str, token: str) -> None:
    (mounted(tmp_path) / "token").write_text(token)
    with pytest.raises(EnvironmentFailure, match="no valid"):
        in_cluster({**SERVICE, "KUBERNETES_SERVICE_PORT": port}, tmp_path)
