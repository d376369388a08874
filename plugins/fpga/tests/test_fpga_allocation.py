"""What a container gets: the nodes by mode, found by their numbers, and variables."""

from __future__ import annotations

import os
import re
from pathlib import Path

import fpga_cards as cards
import fpga_xrt
import pytest
from devhost_fpga.allocation import node
from devhost_fpga.backend import Fpga
from devhost_fpga.dfl import Dfl
from devhost_fpga.model import FpgaSysfs
from devhost_fpga.options import FpgaUse, Program
from devhost_testing.fixtures import BackendFixture, by_id, request
from fpga_backend import unhealthy
from fpga_tree import NLB, FpgaTree

from devhost.backend import AllocationError, Edits

CARD = "0000:3f:00.0"
PORT0, PORT1, ENGINE = f"{CARD}-port0", f"{CARD}-port1", f"{CARD}-fme"
DEVELOPMENT = FpgaUse(development=True)


@pytest.fixture
def tree(tmp_path: Path) -> FpgaTree:
    return cards.two_ports(tmp_path)


def given(backend: Fpga, *names: str, use: FpgaUse | None = None) -> Edits:
    devices = by_id(backend)
    asked = [devices[name] for name in names]
    return (
        backend.allocate(request(backend, asked))
        if use is None
        else backend.allocate(request(backend, asked, use))
    )


def paths(edits: Edits) -> list[str]:
    return [one.path for one in edits.nodes]


def test_each_mode_has_its_nodes(looking: BackendFixture, tree: FpgaTree) -> None:
    backend = looking(tree)
    ports = ["/dev/dfl-port.0", "/dev/dfl-port.1"]
    assert paths(given(backend, PORT1)) == ports[1:]
    assert paths(given(backend, ENGINE)) == ports
    assert paths(given(backend, ENGINE, use=DEVELOPMENT)) == [*ports, "/dev/dfl-fme.0"]
    assert {one.permissions for one in given(backend, ENGINE).nodes} == {"rw"}
    assert all(one.required for one in given(backend, ENGINE).nodes)


def test_variables_name_the_devices_of_the_container(looking: BackendFixture, tree: FpgaTree) -> None:
    env = given(looking(tree), PORT0).env
    assert env == {
        "FPGA_NODES_EXAMPLE_COM_RESOURCE": "/dev/dfl-port.0",
        "FPGA_PCI_EXAMPLE_COM_RESOURCE": CARD,
        "FPGA_AFU_EXAMPLE_COM_RESOURCE": NLB,
    }
    assert "FPGA_AFU_EXAMPLE_COM_RESOURCE" not in given(looking(tree), ENGINE).env


def test_nothing_is_left_for_a_runtime_to_program(looking: BackendFixture, tree: FpgaTree) -> None:
    """Intel's region mode sets an annotation for a hook of the runtime; here programming is the node's."""
    edits = given(looking(tree), ENGINE)
    assert edits.annotations == {}
    assert edits.cdi_devices == ()


def test_the_order_of_the_devices_does_not_matter(looking: BackendFixture, tree: FpgaTree) -> None:
    backend = looking(tree)
    assert given(backend, PORT0, PORT1) == given(backend, PORT1, PORT0)


def test_an_accelerator_function_comes_without_the_engine(looking: BackendFixture, tree: FpgaTree) -> None:
    with pytest.raises(AllocationError, match=f"{PORT0}: development: true needs .*use kind: region"):
        given(looking(tree), PORT0, use=DEVELOPMENT)


def test_a_missing_management_node_is_refused_with_the_reason(
    looking: BackendFixture, tree: FpgaTree
) -> None:
    with pytest.raises(AllocationError, match="management: true needs a management node, and it has none"):
        given(looking(tree), ENGINE, use=FpgaUse(management=True))


@pytest.mark.parametrize(
    ("name", "use"),
    [(PORT0, DEVELOPMENT), (ENGINE, FpgaUse(management=True)), (PORT0, FpgaUse(management=True))],
)
def test_an_option_that_needs_a_node_which_a_device_lacks_is_a_reason_before_allocate(
    looking: BackendFixture, tree: FpgaTree, name: str, use: FpgaUse
) -> None:
    device = by_id(looking(tree))[name]
    (reason,) = [why for what, why in device.unusable_for.items() if what in use.uses]
    with pytest.raises(AllocationError, match=f"^{name}: {re.escape(reason)}$"):
        given(looking(tree), name, use=use)


def test_a_device_that_cannot_be_programmed_is_unusable_only_where_the_entry_programs(
    looking: BackendFixture, tmp_path: Path
) -> None:
    use = FpgaUse(program=Program(Path("/srv/fpga/crypto.gbs")))
    (device,) = looking(fpga_xrt.alveo_u250(tmp_path / "xrt"), entries=[use, FpgaUse()]).discover()
    reasons = [why for what, why in device.unusable_for.items() if what in use.uses]
    assert len(reasons) == 1
    assert "XRT programs this device from the container (remove `program`)" in reasons[0]
    assert device.health
    assert not FpgaUse().uses & device.unusable_for.keys()


def test_a_device_that_is_gone_is_refused(looking: BackendFixture, tree: FpgaTree) -> None:
    backend = looking(tree)
    device = by_id(backend)[PORT0]
    card = next((tree.root / "sys/devices").rglob(CARD))
    tree.remove(f"/{card.relative_to(tree.root)}")
    with pytest.raises(AllocationError, match=f"{PORT0}: it is gone"):
        backend.allocate(request(backend, [device]))
    backend.discover()
    with pytest.raises(AllocationError, match=f"{PORT0} is gone"):
        backend.allocate(request(backend, [device]))


def test_a_missing_node_is_refused_by_name_and_number(looking: BackendFixture, tree: FpgaTree) -> None:
    (tree.root / "dev/dfl-port.0").unlink()
    with pytest.raises(AllocationError, match=r"/dev/dfl-port.0 does not exist, expected c244:1"):
        given(looking(tree), PORT0)


def test_a_node_of_another_device_is_refused(looking: BackendFixture, tree: FpgaTree) -> None:
    """Minor numbers are assigned again when a driver is reloaded, and an earlier name may remain."""
    (tree.root / "dev/dfl-port.0").write_text("c10:229\n")
    with pytest.raises(AllocationError, match=r"/dev/dfl-port.0 is c10:229, expected c244:1"):
        given(looking(tree), PORT0)


def test_a_node_under_another_name_is_found_by_its_number(looking: BackendFixture, tree: FpgaTree) -> None:
    (tree.root / "dev/dfl-port.0").write_text("c10:229\n")
    (tree.root / "dev/fpga").mkdir()
    (tree.root / "dev/fpga/first").write_text("c244:1\n")
    (tree.root / "dev/char").mkdir()
    (tree.root / "dev/char/244:1").symlink_to("../fpga/first")
    assert paths(given(looking(tree), PORT0)) == ["/dev/fpga/first"]


def test_a_link_out_of_dev_is_not_followed(looking: BackendFixture, tree: FpgaTree) -> None:
    (tree.root / "dev/dfl-port.0").unlink()
    (tree.root / "dev/char").mkdir()
    (tree.root / "etc").mkdir()
    (tree.root / "etc/passwd").write_text("c244:1\n")
    (tree.root / "dev/char/244:1").symlink_to("../../etc/passwd")
    with pytest.raises(AllocationError, match="does not exist"):
        given(looking(tree), PORT0)


def test_a_plain_file_is_not_a_node_on_a_live_machine(tree: FpgaTree) -> None:
    sysfs = FpgaSysfs(tree.root)
    place = next((tree.root / "sys/devices").rglob("dfl-port.0"))
    inside = f"/{place.relative_to(tree.root)}"
    assert node(sysfs, inside, is_live=False) == "/dev/dfl-port.0"
    with pytest.raises(AllocationError, match=r"/dev/dfl-port\.0 is not a device node, expected c244:1"):
        node(sysfs, inside, is_live=True)


@pytest.mark.parametrize("text", ["", "244", "1:2:3", "c244:1", "x:y"])
def test_a_device_without_a_number_has_no_node(looking: BackendFixture, tree: FpgaTree, text: str) -> None:
    next((tree.root / "sys/devices").rglob("dfl-port.0/dev")).write_text(text)
    with pytest.raises(AllocationError, match=r"the kernel made no device node for dfl-port\.0"):
        given(looking(tree), PORT0)


def test_a_name_that_leads_out_of_dev_is_ignored(looking: BackendFixture, tree: FpgaTree) -> None:
    uevent = next((tree.root / "sys/devices").rglob("dfl-port.0/uevent"))
    uevent.write_text("DEVNAME=../etc/passwd\nMAJOR=244\nMINOR=1\n")
    assert paths(given(looking(tree), PORT0)) == ["/dev/dfl-port.0"]


def test_no_node_is_ever_opened(
    looking: BackendFixture, tree: FpgaTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They open for one program at a time, and one that is held while its card goes can crash the kernel."""
    real = os.open
    opened: list[str] = []

    def noted(path: str, *rest: int) -> int:
        opened.append(str(path))
        return real(path, *rest)

    monkeypatch.setattr(os, "open", noted)
    backend = looking(tree)
    devices = backend.discover()
    backend.probe(devices)
    backend.allocate(request(backend, devices))
    nodes = {os.path.realpath(path) for path in (tree.root / "dev").iterdir()}
    touched = [path for path in opened if os.path.realpath(path) in nodes]
    # in a tree, plain files represent nodes and may contain their numbers; nothing else is opened
    assert all(Path(path).is_file() for path in touched)
    assert not [path for path in touched if Path(path).name.startswith("dfl-fme")]


# The options of an entry


@pytest.mark.parametrize(
    ("use", "alone"),
    [
        (FpgaUse(), False),
        (FpgaUse(development=True), True),
        (FpgaUse(management=True), True),
    ],
)
def test_what_changes_the_card_cannot_be_shared(use: FpgaUse, alone: bool) -> None:
    assert bool(use.why_alone) is alone
    assert not use.prepares


def test_a_device_with_a_missing_or_wrong_node_is_unhealthy_until_it_is_back(
    looking: BackendFixture, tree: FpgaTree
) -> None:
    backend = looking(tree)
    (tree.root / "dev/dfl-port.0").unlink()
    reason = "/dev/dfl-port.0 does not exist, expected c244:1"
    assert unhealthy(backend) == {PORT0: reason, ENGINE: reason}
    tree.node("/dev/dfl-port.0", "c244:1")
    assert unhealthy(backend) == {}


def test_a_port_of_unknown_number_is_never_programmed(tree: FpgaTree) -> None:
    next((tree.root / "sys/devices").rglob("dfl-port.1/id")).unlink()
    assert [len(unit.slots) for unit in Dfl(FpgaSysfs(tree.root)).scan()] == [1, 0, 0]
