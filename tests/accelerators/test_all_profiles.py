"""All profiles of accelerators in one file, on a node that has none of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from profiles import PROFILES, everything
from program import devhost
from status_values import status


def test_all_profiles_fit_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text(f"version: 1\n{everything()}", encoding="utf-8")
    done = devhost("check", file)
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_node_without_accelerators_offers_nothing_and_has_no_problem(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        Tree(node.root).device("virtual/misc/fuse", "misc", "fuse", "10:229")
        node.configure(everything())
        async with node.served():
            await node.until(lambda: node.devices("udev"))
            assert node.kubelet.allocatable() == {}
            assert status(node.host)["problems"] == []


def test_a_profile_states_its_source_its_differences_and_its_migration() -> None:
    for file in PROFILES:
        header = file.read_text(encoding="utf-8").partition("version: 1")[0]
        compared = "\n# Difference" in header or "No vendor has a plugin" in header.replace("\n# ", " ")
        assert compared and all(f"\n# {part}" in header for part in ("Source: ", "Migration")), file.name


@pytest.mark.parametrize(
    ("entry", "variable"),
    [
        ("backend: neuron, where: {kind: core}", "NEURON_RT_VISIBLE_CORES"),
        ("backend: sriov, where: {kind: mdev}", "MDEV_PCI_RESOURCE_{RESOURCE}"),
        ("backend: sriov, kubevirt: true", "PCI_RESOURCE_{RESOURCE-}"),
        ("backend: udev, kubevirt: true", "USB_RESOURCE_EXAMPLE_COM_X"),
    ],
)
def test_a_variable_that_a_backend_sets_in_an_entry_is_refused_at_the_check(
    tmp_path: Path, entry: str, variable: str
) -> None:
    file = tmp_path / "devhost.yaml"

    def errors(text: str) -> str:
        file.write_text(f"version: 1\nresources:\n- {{name: example.com/x, {text}}}\n", encoding="utf-8")
        return devhost("check", file).stderr

    give = f"give: {{env: {{'{variable}': x}}}}"
    assert "sets this variable (remove it)" in errors(f"{entry}, {give}")
    assert "kubevirt" not in entry or not errors(f"{entry.replace('true', 'false')}, {give}")
