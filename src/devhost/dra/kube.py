"""The API server as the DRA front end uses it: its errors."""

from __future__ import annotations


class ApiError(Exception):
    """The API server refused a request.

    Args:
        status: the HTTP status.
        reason: the ``reason`` of the returned Status.
        message: its ``message``.
    """

    def __init__(self, status: int, reason: str = "", message: str = "") -> None:
        super().__init__(message or reason)
        self.status = status
        self.reason = reason
        self.message = message


class Unreachable(Exception):
    """The API server did not answer; ``message`` is one line for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
