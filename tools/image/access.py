"""This machine's access to packages during a build: mirror, index, proxies and certificates.

They are passed to the builder as secrets, which are visible only to single steps and not stored in the image
or its history. Therefore passwords never appear in a command line either.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
SUITE = "trixie"
KEYRING_INSIDE = "/usr/share/keyrings/debian-archive-keyring.pgp"
"""The keys of Debian 13; ``.gpg`` is a link to this file."""

CERTIFICATES_INSIDE = "/run/ca.crt"
"""The path of the secret ``ca.crt`` in the Dockerfile."""

CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables with the path of a certificate file, the most specific first."""

PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
"""Settings of pip that are also valid inside a container, unlike paths of this machine."""

APT_SETTINGS = re.compile(
    r'^Acquire::(?:https?::[Pp]roxy\b|Retries\b|Check-Valid-Until\b|Check-Date\b)[^"]*"[^"]+";$'
)

LIMIT = 60.0


def mirror() -> str:
    """``DEBIAN_MIRROR``, else the Debian mirror of this machine, else :data:`MIRROR`."""
    if told := os.environ.get("DEBIAN_MIRROR"):
        return told.rstrip("/")
    known = _printed("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()
    return next((uri.rstrip("/") for uri in known if uri.rstrip("/").endswith("/debian")), MIRROR)


def sources(at: str) -> str:
    """The sources of apt for a mirror, in the format of the official Debian images."""
    security = re.sub(r"/debian$", "/debian-security", at)
    entries = [(at, f"{SUITE} {SUITE}-updates"), (security, f"{SUITE}-security")]
    if security == at:  # other mirrors may lack the security suite
        entries = [(at, SUITE)]
    return "\n".join(
        f"Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\nSigned-By: {KEYRING_INSIDE}\n"
        for uri, suites in entries
    )


def apt_settings() -> list[str]:
    """The download settings of apt on this machine, as lines of a configuration file."""
    return [line for line in _printed("apt-config", "dump").splitlines() if APT_SETTINGS.match(line)]


def secrets(directory: Path) -> list[str]:
    """Writes the secrets below ``directory``, and returns the arguments for ``buildah build``."""
    files = {}
    if certificates := _certificates():
        files["ca.crt"] = certificates.read_text(encoding="utf-8", errors="replace")
    lines = apt_settings()
    if certificates:
        lines.append(f'Acquire::https::CAInfo "{CERTIFICATES_INSIDE}";')
    if lines:
        files["apt.conf"] = "\n".join(lines) + "\n"
    if mirror() != MIRROR:
        files["debian.sources"] = sources(mirror())
    pip = _pip_settings()
    if certificates:
        pip["cert"] = CERTIFICATES_INSIDE
    if pip:
        values = (f"{name} = {value}\n" for name, value in pip.items())
        files["pip.conf"] = "[global]\n" + "".join(values)
    directory.mkdir(mode=0o700)
    arguments = []
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
        arguments.append(f"--secret=id={name},src={directory / name}")
    return arguments


def _certificates() -> Path | None:
    for variable in CERTIFICATES:
        if (value := os.environ.get(variable)) and Path(value).is_file():
            return Path(value)
    return None


def _pip_settings() -> dict[str, str]:
    """The settings in the files of pip and in its variables, which take precedence."""
    settings = {}
    for line in _printed(sys.executable, "-m", "pip", "config", "list").splitlines():
        if found := re.fullmatch(r"(?:global|install|:env:)\.([\w-]+)='(.*)'", line):
            settings[found[1].replace("_", "-")] = found[2].replace("\\n", " ").strip()
    for name in PIP_SETTINGS:
        if value := os.environ.get(f"PIP_{name.replace('-', '_').upper()}"):
            settings[name] = value
    return {name: value for name, value in settings.items() if name in PIP_SETTINGS}


def _printed(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""
