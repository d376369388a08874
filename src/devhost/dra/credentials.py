"""Where the API server is, whom to trust, and the token: a pod's service account, or a kubeconfig file."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from devhost.backend.errors import EnvironmentFailure
from devhost.backend.files import read_named
from devhost.backend.frozen import frozen
from devhost.backend.threads import elsewhere

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts a pod's token and the certificate authority."""

_LOCAL = ("localhost", "127.0.0.1", "::1")
"""Hosts to which a token may be sent in plain HTTP: ``kubectl proxy``."""

REREAD = 60.0
"""Seconds after which the files are read again: the kubelet replaces a token about hourly."""

LARGEST = 1 << 20
"""Most bytes of a file with credentials."""

ReadFile = Callable[[Path], bytes]
"""Reads a whole file; raises OSError."""


def read_file(path: Path) -> bytes:
    """What a file of credentials holds."""
    return read_named(path, LARGEST)


@frozen
class Credentials:
    """How to reach the API server.

    ``server`` is its URL, for messages as well, ``tls`` the trust, with a client certificate if there is one;
    ``None`` for plain HTTP. ``server_name`` is whose certificate it must have; by default the host in the
    URL.
    """

    server: str
    tls: ssl.SSLContext | None
    token: str = field(default="", repr=False)
    server_name: str = ""
    host: str = field(init=False)
    port: int = field(init=False)
    path: str = field(init=False)
    authority: str = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.server)  # checked by those who make one
        host = parts.hostname or ""
        for name, value in (
            ("host", host),
            ("port", parts.port or (443 if parts.scheme == "https" else 80)),
            ("path", parts.path.rstrip("/")),
            ("authority", parts.netloc.rpartition("@")[2]),
            ("server_name", self.server_name or host),
        ):
            object.__setattr__(self, name, value)


class Access:
    """Credentials that are read again when one of their files has changed.

    ``load`` reads them with the given function; it may block, and raises ``EnvironmentFailure``. ``source``
    is where they come from, for messages. ``clock`` gives monotonic seconds.
    """

    def __init__(
        self,
        load: Callable[[ReadFile], Credentials],
        source: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._source = source
        self._clock = clock
        self._used: Credentials | None = None
        self._files: Mapping[Path, bytes] = {}
        self._compared = -math.inf
        self._reading = asyncio.Lock()
        self._failure = ""

    def load(self) -> Credentials:
        """Reads them now. Raises ``EnvironmentFailure`` if they cannot be used."""
        files: dict[Path, bytes] = {}
        used = self._load(partial(_recorded, files))
        self._used, self._files, self._failure, self._compared = used, files, "", self._clock()
        return used

    @property
    def source(self) -> str:
        """Where they come from, and why newer ones cannot be used, if there are some."""
        return f"{self._source}; {self._failure}" if self._failure else self._source

    async def current(self, *, fresh: bool = False) -> Credentials:
        """The credentials, and always the same object until they change.

        The files are compared after :data:`REREAD` seconds, or at once with ``fresh``. While they cannot be
        used, the last credentials are: a file may be just being replaced. Raises ``EnvironmentFailure`` if
        none could be read yet.
        """
        if self._used is not None and not fresh and self._clock() - self._compared < REREAD:
            return self._used
        async with self._reading:
            return await self._renewed()

    async def _renewed(self) -> Credentials:
        if self._used is not None:
            self._compared = self._clock()
            if not await elsewhere(_differ, self._files):
                return self._used
        try:
            return await elsewhere(self.load)
        except EnvironmentFailure as error:
            if self._used is None:
                raise
            self._failure = str(error)
            return self._used


def _recorded(files: dict[Path, bytes], path: Path) -> bytes:
    files[path] = read_file(path)
    return files[path]


def _differ(files: Mapping[Path, bytes]) -> bool:
    """Whether a file is no longer as it was read."""
    try:
        return any(read_file(path) != data for path, data in files.items())
    except OSError:
        return True


def from_files(
    kubeconfig_file: Path | None,
    environment: Mapping[str, str],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Access:
    """The access of a kubeconfig file if one is named, else that of the pod.

    Raises ``EnvironmentFailure`` if none is named, and the process is not in a pod.
    """
    if kubeconfig_file is not None:
        return Access(partial(kubeconfig, kubeconfig_file), str(kubeconfig_file), clock=clock)
    in_cluster_server(environment)
    return Access(partial(in_cluster, environment, SERVICE_ACCOUNT), str(SERVICE_ACCOUNT), clock=clock)


def in_cluster_server(environment: Mapping[str, str]) -> str:
    """The URL of the API server from the environment of a pod; ``EnvironmentFailure`` outside of one."""
    host, port = (
        environment.get("KUBERNETES_SERVICE_HOST", ""),
        environment.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host:
        raise EnvironmentFailure(
            "KUBERNETES_SERVICE_HOST is not set, so the API server is unknown",
            "run devhost in a pod, or give --kubeconfig FILE",
        )
    bracketed = f"[{host}]" if ":" in host else host
    server = f"https://{bracketed}:{port}"
    if not _is_url(server):
        raise EnvironmentFailure(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are no valid address",
            "remove them from the pod's env: the kubelet sets them",
        )
    return server


def in_cluster(
    environment: Mapping[str, str], directory: Path = SERVICE_ACCOUNT, read: ReadFile = read_file
) -> Credentials:
    """The credentials of a pod, from ``token`` and ``ca.crt`` in ``directory``.

    Raises ``EnvironmentFailure`` if the process is not in a pod with a mounted token.
    """
    server = in_cluster_server(environment)
    token, authority = directory / "token", directory / "ca.crt"
    try:
        secret = _token(read(token))
        trust = _trusting(read(authority))
    except (ssl.SSLError, UnicodeDecodeError, _Empty):
        raise EnvironmentFailure(
            f"{authority} holds no certificate", "mount the service account's token into the pod"
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
    return Credentials(server, trust, secret)


def kubeconfig(path: Path, read: ReadFile = read_file) -> Credentials:
    """The credentials of the current context of a kubeconfig file; ``read`` also reads the files it names.

    Raises ``EnvironmentFailure`` if the file cannot be read or used.
    """
    document = _read(path, read)
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
        trust = _trust(cluster, user, path, read)
    secret = ""
    try:
        if token_file := user.get("tokenFile"):  # wins over token, as in kubectl
            secret = _token(read(path.parent / str(token_file)))
        elif token := user.get("token"):
            secret = _valid(str(token).strip())
    except OSError as error:
        reason = f"{error.filename} cannot be read: {error.strerror}"
        raise _failure(path, f"its tokenFile {reason}", "name a readable file") from None
    except ValueError:
        raise _failure(path, "its user's token is not valid", "write the token on one line") from None
    return Credentials(server, trust, secret, str(cluster.get("tls-server-name") or ""))


def _read(path: Path, read: ReadFile) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(read(path))
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


def _trust(cluster: Mapping[str, Any], user: Mapping[str, Any], path: Path, read: ReadFile) -> ssl.SSLContext:
    try:
        authority = _data(cluster, "certificate-authority", path, read)
        if authority is None:
            raise _failure(path, "its cluster has no certificate-authority", "add it, or its -data")
        trust = _trusting(authority)
        if (certificate := _data(user, "client-certificate", path, read)) is not None:
            _load_chain(trust, certificate, _data(user, "client-key", path, read) or b"")
    except _Empty:
        raise _failure(path, "its certificate-authority is empty", "write it in PEM format") from None
    except (ssl.SSLError, UnicodeDecodeError, binascii.Error):
        raise _failure(path, "a certificate or key in it is not valid", "write them in PEM format") from None
    except OSError as error:
        raise _failure(
            path, f"{error.filename} cannot be read: {error.strerror}", "name a readable file"
        ) from None
    return trust


class _Empty(ValueError):
    """There is no certificate."""


def _trusting(authority: bytes) -> ssl.SSLContext:
    if not authority.strip():
        raise _Empty  # an empty text would load the authorities of the system instead
    return ssl.create_default_context(cadata=authority.decode("ascii"))


def _data(section: Mapping[str, Any], key: str, path: Path, read: ReadFile) -> bytes | None:
    if data := section.get(f"{key}-data"):
        return base64.b64decode("".join(str(data).split()), validate=True)
    if file := section.get(key):
        return read(path.parent / str(file))
    return None


def _load_chain(trust: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Loads a client certificate; the library reads it only from a file."""
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        trust.load_cert_chain(file.name, password="")  # without one, OpenSSL asks on the terminal


def _token(data: bytes) -> str:
    """The token in a file. Raises ``ValueError`` if it holds no valid one."""
    return _valid(data.decode("utf-8", "replace").strip())


def _valid(token: str) -> str:
    """A token, if a header may contain it; else a ``ValueError`` whose text does not have the token."""
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
