"""A headless Chromium, driven by the W3C WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

PATIENCE = 60
"""Seconds for one command: a busy machine is no failure."""
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key under which the protocol refers to an element."""


class BrowserError(Exception):
    """The error of the driver for a command."""


def why_not() -> str:
    """Why no browser can run on this machine; empty if one can."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not installed (apt install chromium chromium-driver)" if missing else ""


class Browser:
    """A browser with one tab, closed at the end of the ``with``; ``profile`` is an empty directory for it."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile

    def __enter__(self) -> Self:
        # A sandbox needs user namespaces, which root does not get everywhere; the page is our own.
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        arguments += [f"--user-data-dir={self._profile}", "--force-prefers-reduced-motion", "--lang=en"]
        arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert self._driver.stdout is not None
            line = next(line for line in self._driver.stdout if "started successfully on port" in line)
            self._base = f"http://127.0.0.1:{line.split()[-1].rstrip('.')}/session"
            wanted = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
            made = self._call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
            self._base += f"/{made['sessionId']}"
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._end()

    def _end(self) -> None:
        self._driver.terminate()
        self._driver.communicate(timeout=PATIENCE)

    def open(self, address: str) -> None:
        """Opens a page and waits until it is loaded."""
        self._call("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: object) -> Any:
        """Runs a function with this body in the page, and returns its result."""
        return self._call("POST", "/execute/sync", {"script": script, "args": arguments})

    def click(self, selector: str) -> None:
        """Clicks the first element that matches the CSS selector."""
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[ELEMENT]}/click", {})

    def press(self, keys: str) -> None:
        """Types into the focused element; special keys are those of the protocol (``\\ue004`` is Tab)."""
        typed = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": typed}]
        self._call("POST", "/actions", {"actions": actions})

    def devtools(self, command: str, **parameters: object) -> Any:
        """Sends a command of Chromium's DevTools protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def console(self) -> list[str]:
        """The new lines of the browser's console since the last call."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def narrow(self, width: int, height: int = 900) -> None:
        """Sets the width of the page in CSS pixels; below 500 is a phone."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            self._base + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            said = json.load(error)["value"]
            raise BrowserError(f"{said['error']}: {said['message']}") from error
