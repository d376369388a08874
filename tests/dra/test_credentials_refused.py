"""What devhost does not take from a pod or a kubeconfig file, because it would trust or send too much."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.dra.access import kubeconfig_text

from devhost.backend.errors import EnvironmentFailure
from devhost.dra.credentials import in_cluster, kubeconfig

TLS = Path(__file__).parent / "tls"
CA = {"certificate-authority": str(TLS / "authority.pem")}


def config(directory: Path, user: dict[str, Any], **cluster: Any) -> Path:
    file = directory / "kubeconfig"
    file.write_text(kubeconfig_text({"server": "https://api.example.com", **cluster}, user))
    return file


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
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
        "a certificate or key in it is not valid",
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
def test_what_would_trust_or_send_too_much_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    user, cluster, text = REFUSED[case]
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(EnvironmentFailure) as caught:
        kubeconfig(config(tmp_path, user, **cluster))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


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
    folded = base64.encodebytes((TLS / "authority.pem").read_bytes()).decode()
    for cluster in (CA, {"certificate-authority-data": folded}):
        tls = kubeconfig(config(tmp_path, {}, **cluster)).tls
        assert tls is not None
        assert [len(tls.get_ca_certs()), tls.check_hostname] == [1, True]


def test_plain_http_is_for_a_proxy_on_this_machine(tmp_path: Path) -> None:
    found = kubeconfig(config(tmp_path, {}, server="http://127.0.0.1:8001"))
    assert (found.host, found.port, found.tls) == ("127.0.0.1", 8001, None)


@pytest.mark.parametrize(("port", "token"), [("port", "t"), ("443", ""), ("443", "a b"), ("443", "ä")])
def test_a_pod_with_a_wrong_address_or_token_is_refused(tmp_path: Path, port: str, token: str) -> None:
    (tmp_path / "token").write_text(token)
    (tmp_path / "ca.crt").write_bytes((TLS / "authority.pem").read_bytes())
    with pytest.raises(EnvironmentFailure, match="no valid"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": port}, tmp_path)
