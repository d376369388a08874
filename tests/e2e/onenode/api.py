"""A client of the cluster's API server for the tests."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from .namespaces import Namespaces

TIMEOUT = 120.0
"""Seconds for one request; it takes milliseconds, except where the machine is busy with other things."""

Json = dict[str, Any]


class ApiError(Exception):
    """The API server refused; ``status`` is the HTTP code."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """Makes each request over a new connection, opened inside the node's network."""

    def __init__(self, namespaces: Namespaces, port: int, token: str) -> None:
        self._namespaces = namespaces
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._tls = ssl._create_unverified_context()  # its certificate is new and self-signed

    def get(self, path: str) -> Json:
        """
        Raises:
            ApiError: the server refused.
            OSError: it is unreachable.
        """
        parsed: Json = json.loads(self.call("GET", path))
        return parsed

    def post(self, path: str, document: Json) -> None:
        """Creates an object; raises as :meth:`get`."""
        self.call("POST", path, document)

    def delete(self, path: str, **options: Any) -> None:
        """Deletes an object, if it exists; raises as :meth:`get`."""
        try:
            self.call("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})
        except ApiError as error:
            if error.status != 404:
                raise

    def call(self, method: str, path: str, document: Json | None = None) -> str:
        """One request; the answer's body. A patch is a strategic merge patch."""
        kind = "strategic-merge-patch+json" if method == "PATCH" else "json"
        body = None if document is None else json.dumps(document)
        headers = {**self._headers, **({"Content-Type": f"application/{kind}"} if body else {})}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)
        plain = self._namespaces.connect(self._port, TIMEOUT)
        try:
            connection.sock = self._tls.wrap_socket(plain)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
            plain.close()
        if answer.status >= 300:
            raise ApiError(answer.status, text[:500])
        return text
