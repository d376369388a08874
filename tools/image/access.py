"""How this machine reaches packages: its mirror, index, proxies and certificates, for the time of a build.

They are handed to the builder as secrets, which it shows to single steps and keeps out of the image and its
history. Values that hold passwords therefore never appear in a command line either.
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
"""Where Debian 13 has its keys; ``.gpg`` is a link to it."""

CERTIFICATES_INSIDE = "/run/ca.crt"
"""Where the Dockerfile shows the secret ``ca.crt``."""

CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that name a file of certificates, the most particular first."""

PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
"""Settings of pip that mean the same inside a container; paths of this machine do not."""

APT_SETTINGS = re.compile(
    r'^Acquire::(?:https?::[Pp]roxy\b|Retries\b|Check-Valid-Until\b|Check-Date\b)[^"]*"[^"]+";$'
)

LIMIT = 60.0


def mirror() -> str:
    """``DEBIAN_MIRROR``, else the mirror of Debian that this machine itself uses, else :data:`MIRROR`."""
    if told := os.environ.get("DEBIAN_MIRROR"):
        return told.rstrip("/")
    known = _printed("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()
    return next((uri.rstrip("/") for uri in known if uri.rstrip("/").endswith("/debian")), MIRROR)


def sources(at: str) -> str:
    """The lines for apt that name a mirror, in the form that Debian's own images have."""
    security = re.sub(r"/debian$", "/debian-security", at)
    entries = [(at, f"{SUITE} {SUITE}-updates"), (security, f"{SUITE}-security")]
    if security == at:  # a mirror of another shape need not have more
        entries = [(at, SUITE)]
    return "\n".join(
        f"Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\nSigned-By: {KEYRING_INSIDE}\n"
        for uri, suites in entries
    )


def apt_settings() -> list[str]:
    """What this machine's apt is told about fetching, as lines of a configuration file."""
    return [line for line in _printed("apt-config", "dump").splitlines() if APT_SETTINGS.match(line)]


def secrets(directory: Path) -> list[str]:
    """Writes what the builder needs below ``directory``, and returns its arguments for ``buildah build``."""
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
    """From pip's files and then from its variables, which count for more."""
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
