"""A restart with an invalid file: devhost starts from its copy of the last accepted one."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from reading_node import RESOURCE, ReadingNode

OTHER = "example.com/other"
TOY, WRONG = f"{{name: {RESOURCE}, backend: toy}}", f"{{name: {RESOURCE}, backend: toyy}}"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ReadingNode]:
    async with ReadingNode(tmp_path) as made:
        await serves(made, RESOURCE)
        await made.until(lambda: list(made.state.glob("config-*.yaml")))
        yield made


async def serves(node: ReadingNode, *resources: str) -> None:
    wanted = dict.fromkeys(resources, 3)
    await node.kubelet.wait_for(lambda: {n: c for n, c in node.kubelet.allocatable().items() if c} == wanted)


def copy(node: ReadingNode) -> Path:
    """The only copy in its directory."""
    (found,) = node.state.glob("config-*.yaml")
    return found


async def test_a_restart_with_a_bad_file_serves_the_last_accepted_one_and_reports_the_bad_file(node):
    node.configure(WRONG)
    await node.again()
    await serves(node, RESOURCE)
    reason = (
        f'{node.config}:4:{5 + len(TOY) - len("toy}")}: resources[0].backend: backend "toyy" is not installed'
    )
    (problem,) = node.problems("config")
    assert problem["subject"] == str(node.config)
    assert problem["reason"].startswith(reason)
    await node.until(lambda: not node.unsaid("config", str(node.config), problem["reason"]))
    about = node.document()["devhost"]
    assert about["lastReload"]["result"] == "rejected"
    assert about["lastReload"]["complaints"] == [problem["reason"]]
    assert about["copy"]["file"] == str(copy(node))
    said = f"running on the copy of {about['copy']['acceptedAt']}"
    assert re.search(rf"^config .*  REJECTED \w+ ago, {said}$", node.status(), re.MULTILINE)
    assert said in node.page()
    assert node.value("devhost_config_last_reload_success") == 0
    (logged,) = node.log(reason=problem["reason"])
    assert (logged["level"], logged["copy"]) == ("error", str(copy(node)))


async def test_it_is_alive_and_not_ready_while_it_runs_on_the_copy(node):
    node.configure(WRONG)
    await node.again()
    await serves(node, RESOURCE)
    accepted = node.document()["devhost"]["copy"]["acceptedAt"]
    expected = f"configuration refused, running on the copy of {accepted}: {node.config}:4:"
    await node.until(lambda: node.get("/readyz")[1].startswith(expected))
    assert node.get("/readyz")[0] == 503
    assert node.get("/healthz") == (200, "ok\n")
    node.configure("{name: nonsense, backend: toy}")
    await node.until(lambda: "nonsense" in node.get("/readyz")[1])
    assert node.get("/readyz")[0] == 503


async def test_the_next_good_edit_is_adopted_and_becomes_the_copy(node):
    node.configure(WRONG)
    await node.again()
    node.configure(f"{{name: {OTHER}, backend: toy}}")
    await serves(node, OTHER)
    await node.until(lambda: node.get("/readyz") == (200, "ok\n"))
    assert node.problems("config") == []
    assert node.document()["devhost"]["copy"] is None
    assert node.value("devhost_config_last_reload_success") == 1
    await node.until(lambda: OTHER in copy(node).read_text())
    node.configure(WRONG)
    await node.again()
    await serves(node, OTHER)


async def test_a_good_file_that_equals_the_copy_ends_running_on_it(node):
    node.configure(WRONG)
    await node.again()
    node.configure(TOY)
    await node.until(lambda: node.get("/readyz") == (200, "ok\n"))
    assert node.document()["devhost"]["copy"] is None


async def test_sighup_reads_a_refused_file_again(node):
    node.configure(WRONG)
    await node.again()
    node.look()
    message = "configuration refused, the old one stays"
    await node.until(lambda: node.log(message=message))
    node.configure(TOY)
    node.look()
    await node.until(lambda: node.document()["devhost"]["copy"] is None)


async def test_an_edit_while_it_runs_is_what_a_restart_with_a_bad_file_serves(node):
    node.configure(f"{{name: {OTHER}, backend: toy}}")
    await serves(node, OTHER)
    await node.until(lambda: OTHER in copy(node).read_text())
    node.configure(WRONG)
    await node.until(lambda: node.problems("config"))
    assert node.get("/readyz") == (200, "ok\n"), "a running host stays ready, as before"
    await node.again()
    await serves(node, OTHER)


async def test_a_file_that_is_missing_at_a_restart_is_waited_for(node):
    node.config.unlink()
    await node.again()
    await serves(node, RESOURCE)
    assert node.problems("config")[0]["reason"].startswith(f"{node.config}: there is no such file (")
    node.configure(f"{{name: {OTHER}, backend: toy}}")
    await serves(node, OTHER)
    await node.until(lambda: node.get("/readyz") == (200, "ok\n"))


async def test_relative_paths_in_the_copy_begin_where_the_file_was(node):
    """A drop-in next to the file is found, although the copy is elsewhere."""
    assert "backendPaths: [backends]" in copy(node).read_text()
    node.configure(WRONG)
    await node.again()
    await serves(node, RESOURCE)


async def test_a_relative_config_option_has_the_copy_of_the_file_it_names(node, monkeypatch):
    monkeypatch.chdir(node.config.parent)
    node.configure(WRONG)
    await node.again("--config", node.config.name)
    await serves(node, RESOURCE)


async def test_strict_config_ends_with_2_at_a_start_with_a_bad_file(node):
    node.configure(WRONG)
    (reason,) = await node.refused("--strict-config")
    assert reason.startswith(f"{node.config}:4:")
    node.configure(TOY)
    await node.again("--strict-config")
    await serves(node, RESOURCE)
    node.configure(WRONG)
    await node.until(lambda: node.problems("config"))  # a running host keeps its configuration


async def test_a_bad_file_at_another_path_ends_with_2(node, tmp_path):
    other = tmp_path / "other.yaml"
    node.configure(WRONG)
    node.config.rename(other)
    (reason,) = await node.refused("--config", str(other))
    assert reason.startswith(f"{other}:4:")
    (reason,) = await node.refused("--config", str(tmp_path / "typo"))
    assert reason.startswith(f"{tmp_path / 'typo'}: there is no such file (check the path")


async def test_a_damaged_copy_ends_with_2_and_both_reasons(node):
    whole = copy(node).read_bytes()
    node.configure(WRONG)
    for damaged in (whole[:-1], whole[:40], b"", whole.replace(b"toy", b"yot")):
        copy(node).write_bytes(damaged)
        first, second = await node.refused()
        assert first.startswith(f"{node.config}:4:")
        assert second == (
            f"{copy(node)}: this copy of the last accepted configuration cannot be used: it is damaged"
            f" (remove it: `rm {copy(node)}`)"
        )


async def test_a_copy_that_others_can_change_ends_with_2_and_both_reasons(node):
    node.configure(WRONG)
    copy(node).chmod(0o666)
    _, second = await node.refused()
    assert "other users can change it" in second


async def test_a_copy_that_names_a_backend_that_is_gone_ends_with_2_and_both_reasons(node):
    copied = copy(node)
    line = next(n for n, text in enumerate(copied.read_text().splitlines(), 1) if "backend: toy" in text)
    (node.drop_ins / "toy.py").unlink()
    node.configure("nonsense")
    first, second = await node.refused()
    assert first.startswith(f"{node.config}:4:")
    assert second.startswith(f"{copied}:{line}:")
    assert "resources[0].backend: this copy of the configuration accepted at 2" in second
    assert 'cannot be used either: backend "toy" is not installed' in second


async def test_a_start_with_the_same_file_leaves_the_copy_alone(node):
    before = copy(node).stat()
    await node.again()
    await serves(node, RESOURCE)
    after = copy(node).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


async def test_a_directory_that_cannot_be_written_is_logged_once_and_hinders_nothing(node):
    blocked = node.state / copy(node).name / "below"  # a file is where its directory would have to be
    await node.again("--state-dir", str(blocked))
    await serves(node, RESOURCE)
    (line,) = node.log(message="the configuration is not copied")
    assert line["level"] == "warning"
    assert line["reason"].startswith(f"cannot keep a copy of the configuration in {blocked}: Not a directory")
    assert node.get("/readyz") == (200, "ok\n")
    assert node.document()["problems"] == []
    node.look()
    await node.until(lambda: node.log(message="configuration loaded"))
    assert len(node.log(message="the configuration is not copied")) == 1


async def test_the_copy_is_as_closed_as_the_file(node):
    assert node.state.stat().st_mode & 0o777 == 0o700
    for given, kept in ((0o600, 0o600), (0o640, 0o640), (0o666, 0o644), (0o400, 0o600)):
        node.config.chmod(given)
        await node.again()
        await serves(node, RESOURCE)
        await node.until(lambda kept=kept: copy(node).stat().st_mode & 0o777 == kept)
        assert copy(node).stat().st_uid == os.geteuid()
