"""Where the API server is, whom to trust, and the token: a pod's service account, or a kubeconfig file."""

from __future__ import annotations

import base64
import binascii
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from devhost.backend.errors import EnvironmentFailure
from devhost.backend.files import read_named
from devhost.backend.threads import elsewhere

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts a pod's token and the certificate authority."""

_LOCAL = ("localhost", "127.0.0.1", "::1")
"""Hosts to which a token may be sent in plain HTTP: ``kubectl proxy``."""

REREAD = 60.0
"""Seconds for which a token is used before its file is read again: the kubelet replaces it about hourly."""


@dataclass
class Credentials:
    """How to reach the API server.

    Args:
        server: its URL, for messages as well.
        tls: the trust, and a client certificate if there is one; ``None`` for plain HTTP.
        read_token: reads the token; may block; raises OSError. Without it no token is sent.
        clock: monotonic seconds.
    """

    server: str
    tls: ssl.SSLContext | None
    read_token: Callable[[], str] | None = None
    clock: Callable[[], float] = time.monotonic
    server_name: str = ""
    _token: str = field(default="", init=False, repr=False)
    _read_at: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.server)  # checked by those who make one
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.path = parts.path.rstrip("/")
        self.authority = parts.netloc.rpartition("@")[2]
        self.server_name = self.server_name or self.host

    async def token(self, *, fresh: bool = False) -> str:
        """The token; read again after :data:`REREAD` seconds, or at once with ``fresh``.

        If its file cannot be read or has no valid token, the last one is used: the file is being replaced.
        """
        now = self.clock()
        if self.read_token is not None and (fresh or self._read_at is None or now - self._read_at >= REREAD):
            try:
                self._token = _valid(await elsewhere(self.read_token))
                self._read_at = now
            except (OSError, ValueError):
                pass  # a request without a valid token is refused with 401, which has the reason
        return self._token


LARGEST = 1 << 20
"""Most bytes of a file with credentials."""


def in_cluster(environment: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> Credentials:
    """The credentials of a pod.

    Args:
        environment: has ``KUBERNETES_SERVICE_HOST`` and ``KUBERNETES_SERVICE_PORT``.
        directory: has ``token`` and ``ca.crt``.

    Raises:
        EnvironmentFailure: the process is not in a pod with a mounted token.
    """
    host, port = (
        environment.get("KUBERNETES_SERVICE_HOST", ""),
        environment.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host:
        raise EnvironmentFailure(
            "KUBERNETES_SERVICE_HOST is not set, so the API server is unknown",
            "run devhost in a pod, or give --kubeconfig FILE",
        )
    token = directory / "token"
    bracketed = f"[{host}]" if ":" in host else host
    server = f"https://{bracketed}:{port}"
    if not _is_url(server):
        raise EnvironmentFailure(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are no valid address",
            "remove them from the pod's env: the kubelet sets them",
        )
    try:
        _token_of(token)
        trust = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    except ssl.SSLError:
        raise EnvironmentFailure(
            f"{directory / 'ca.crt'} holds no certificate", "mount the service account's token into the pod"
        ) from None
    except ValueError:
        raise EnvironmentFailure(
            f"{token} holds no valid token", "mount the service account's token into the pod"
        ) from None
    except OSError as error:
        raise EnvironmentFailure(
            f"the service account's token in {directory} cannot be read: {error.strerror}",
            "set automountServiceAccountToken: true, or give --kubeconfig FILE",
        ) from None
    return Credentials(server, trust, lambda: _token_of(token))


def kubeconfig(path: Path) -> Credentials:
    """The credentials of the current context of a kubeconfig file.

    Raises:
        EnvironmentFailure: the file cannot be read or used.
    """
    document = _read(path)
    name = str(document.get("current-context") or "")
    context = _named(document, "contexts", name, "context", path)
    cluster = _named(document, "clusters", str(context.get("cluster")), "cluster", path)
    user = _named(document, "users", str(context.get("user")), "user", path)
    for key in ("exec", "auth-provider", "username", "as", "as-uid", "as-groups", "as-user-extra"):
        if user.get(key):
            raise _failure(
                path, f"its user needs {key}, which devhost does not support", "use a token or a certificate"
            )
    if cluster.get("proxy-url"):
        raise _failure(path, "its cluster needs proxy-url, which devhost does not support", "remove it")
    if cluster.get("insecure-skip-tls-verify"):
        raise _failure(path, "insecure-skip-tls-verify is set", "name the certificate-authority instead")
    server = str(cluster.get("server") or "")
    if not _is_url(server):
        raise _failure(path, f"server {server!r} is no URL", "write it as https://host:port")
    if server.startswith("http:") and urlsplit(server).hostname not in _LOCAL:
        raise _failure(path, f"server {server!r} would get the token without TLS", "write https://")
    trust = None
    if server.startswith("https:"):
        trust = _trust(cluster, user, path)
    read_token: Callable[[], str] | None = None
    try:
        if token_file := user.get("tokenFile"):  # wins over token, as in kubectl
            read_token = partial(_token_of, path.parent / str(token_file))
            read_token()
        elif token := user.get("token"):
            read_token = str(token).strip
            _valid(read_token())
    except OSError as error:
        reason = f"{error.filename} cannot be read: {error.strerror}"
        raise _failure(path, f"its tokenFile {reason}", "name a readable file") from None
    except ValueError:
        raise _failure(path, "its user's token is not valid", "write the token on one line") from None
    return Credentials(server, trust, read_token, server_name=str(cluster.get("tls-server-name") or ""))


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(read_named(path, LARGEST))
    except OSError as error:
        raise _failure(path, f"cannot be read: {error.strerror}", "give a kubeconfig file") from None
    except yaml.YAMLError:
        raise _failure(path, "is not valid YAML", "give a kubeconfig file") from None
    if not isinstance(document, dict):
        raise _failure(path, "is no kubeconfig file", "give a kubeconfig file")
    return document


def _named(document: Mapping[str, Any], where: str, name: str, what: str, path: Path) -> dict[str, Any]:
    found = document.get(where)
    for one in found if isinstance(found, list) else ():
        if isinstance(one, dict) and one.get("name") == name and isinstance(one.get(what), dict):
            return dict(one[what])
    raise _failure(path, f"has no {what} {name!r}", "set current-context to a complete context")


def _trust(cluster: Mapping[str, Any], user: Mapping[str, Any], path: Path) -> ssl.SSLContext:
    try:
        authority = _data(cluster, "certificate-authority", path)
        if authority is None:
            raise _failure(path, "its cluster has no certificate-authority", "add it, or its -data")
        if not authority.strip():
            raise _failure(path, "its certificate-authority is empty", "write it in PEM format")
        # an empty text would load the authorities of the system instead
        trust = ssl.create_default_context(cadata=authority.decode("ascii"))
        if (certificate := _data(user, "client-certificate", path)) is not None:
            _load_chain(trust, certificate, _data(user, "client-key", path) or b"")
    except (ssl.SSLError, UnicodeDecodeError, binascii.Error):
        raise _failure(path, "a certificate or key in it is not valid", "write them in PEM format") from None
    except OSError as error:
        raise _failure(
            path, f"{error.filename} cannot be read: {error.strerror}", "name a readable file"
        ) from None
    return trust


def _data(section: Mapping[str, Any], key: str, path: Path) -> bytes | None:
    if data := section.get(f"{key}-data"):
        return base64.b64decode("".join(str(data).split()), validate=True)
    if file := section.get(key):
        return read_named(path.parent / str(file), LARGEST)
    return None


def _load_chain(trust: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Loads a client certificate; the library reads it only from a file."""
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        trust.load_cert_chain(file.name, password="")  # without one, OpenSSL asks on the terminal


def _token_of(file: Path) -> str:
    """The token in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no valid token.
    """
    return _valid(read_named(file, LARGEST).decode("ascii").strip())


def _valid(token: str) -> str:
    """A token, if a header may contain it.

    Raises:
        ValueError: it cannot; the text does not have the token.
    """
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise ValueError("no valid token")
    return token


def _is_url(server: str) -> bool:
    try:
        parts = urlsplit(server)
        return parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _failure(path: Path, reason: str, hint: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"{path} {reason}", hint)
