"""`devhost import`: the error for an unknown importer."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from devhost_import.command import command

from devhost.backend.errors import UsageError


@pytest.mark.parametrize(
    ("word", "hint"),
    [("volcano", "known importers: "), ("nvidia-device-plugins", "did you mean nvidia-device-")],
)
def test_an_unknown_plugin_is_refused_in_one_line_with_a_link_to_the_guide(word: str, hint: str) -> None:
    done = CliRunner().invoke(command, [word, "file.yaml"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code == 2
    message = str(done.exception)
    assert f'there is no importer "{word}"' in message
    assert hint in message and "docs/migration.md" in message
    assert len(message.splitlines()) == 1
