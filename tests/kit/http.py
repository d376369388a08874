"""What a program that listens answers."""

from __future__ import annotations

import urllib.error
import urllib.request


def get(address: object, path: str) -> tuple[int, str]:
    """The code and the text of an answer; 0 and the reason while there is none."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=240) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
