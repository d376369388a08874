"""The files of claims: what they record, and that nothing in the directory can stop devhost."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.waiting import background, until

from devhost.allocation.cdi.claim_files import ClaimFiles, document, parsed
from devhost.allocation.cdi.files import SpecFiles
from devhost.allocation.cdi.spec import dumps
from devhost.allocation.claims import ClaimedDevice, ClaimRecord
from devhost.backend.errors import EnvironmentFailure
from devhost.backend.model import ClaimHolder
from devhost.planning.amounts import CapacityUse

UID = "0a000000-0000-4000-8000-000000000000"
DRIVER = "devhost.example.com"
KIND = f"{DRIVER}/claim"


def device(number: int = 0, **more: object) -> ClaimedDevice:
    values: dict[str, object] = {
        "request": "gpu",
        "pool": "node-1/card",
        "device": f"card-{number}",
        "share": "",
        "key": ("udev", f"card {number}=%,"),
        "resource": "example.com/card",
        "cdi_ids": (f"{KIND}={UID}-gpu-{number}",),
    }
    return ClaimedDevice(**(values | more))  # type: ignore[arg-type]


def record(*devices: ClaimedDevice) -> ClaimRecord:
    return ClaimRecord(ClaimHolder("team", "claim", UID), DRIVER, devices or (device(),))


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[ClaimFiles]:
    (tmp_path / "boot_id").write_text("boot-1\n")
    made = ClaimFiles(tmp_path / "cdi", boot_id=tmp_path / "boot_id")
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of the claim once it is prepared."""
    return tmp_path / "cdi" / f"devhost-dra_{UID}.json"


def again(place: Path, boot: str = "boot-1") -> ClaimFiles:
    """The files as another run of devhost sees them."""
    (place / "boot_id").write_text(f"{boot}\n")
    return ClaimFiles(place / "cdi", boot_id=place / "boot_id")


promise = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
printable = st.characters(
    exclude_categories=("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"), include_characters=" "
)
words = st.text(printable, min_size=1, max_size=20)
labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
parts = st.builds(
    CapacityUse,
    st.from_regex(r"[A-Za-z_]\w{0,31}", fullmatch=True),
    st.integers(1, 2**63),
    st.integers(1, 2**63),
)
cdi_names = st.from_regex(r"[a-z]{1,5}\.[a-z]{1,5}/[a-z]{1,5}=[A-Za-z0-9,:._-]{1,8}", fullmatch=True)


@promise
@given(
    st.lists(
        st.tuples(
            labels,
            labels,
            st.just("") | labels,
            words,
            words,
            st.lists(cdi_names, max_size=3),
            st.booleans(),
            st.lists(parts, max_size=3),
        ),
        min_size=1,
        max_size=8,
    ),
    labels,
    st.integers(1, 100_000),
)
def test_a_file_has_everything_of_its_claim(found, name, replicas):
    devices = tuple(
        device(
            number,
            request=request,
            device=one,
            share=share,
            key=("udev", identity),
            resource=resource,
            cdi_ids=(f"{KIND}={UID}-{request}-{number}", *more),
            admin=admin,
            exclusive=not admin,
            replicas=replicas,
            slots=replicas - number if replicas > number else 1,
            members=(identity, one) if admin else (),
            parts=tuple(some),
        )
        for number, (request, one, share, identity, resource, more, admin, some) in enumerate(found)
    )
    expected = ClaimRecord(ClaimHolder("team", name, UID), DRIVER, devices)
    text = dumps(document(expected, {}, "boot-1"))
    assert parsed(text.encode(), UID) == (expected, "boot-1")


@promise
@given(st.binary(max_size=200))
def test_no_content_of_a_file_raises(data):
    assert parsed(data, UID) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "devices", "name", "containerEdits", "env"]), inner, max_size=5
        )
    ),
)


@promise
@given(JSON)
def test_no_json_in_a_file_raises(found):
    assert parsed(json.dumps(found).encode(), UID) is None


@settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_record_is_none_or_what_it_was(data):
    expected = record(device(0), device(1, share="s-1", cdi_ids=(f"{KIND}={UID}-gpu-1", "a.b/c=d")))
    text = dumps(document(expected, {}, "boot-1")).encode()
    cut = data.draw(st.integers(0, len(text) - 1))
    assert parsed(text[:cut].rstrip(), UID) in (None, (expected, "boot-1"))


def test_a_record_is_only_of_the_claim_its_file_is_named_after():
    text = dumps(document(record(), {}, "boot-1")).encode()
    assert parsed(text, UID) is not None and parsed(text, UID.replace("0a", "0b")) is None


def test_a_record_that_lacks_a_device_is_none():
    found = document(record(device(0), device(1)), {}, "boot-1")
    del found["devices"][1]
    assert [one["name"] for one in found["devices"]] == [f"{UID}-gpu-0", f"record-{UID}"]
    assert parsed(json.dumps(found).encode(), UID) is None


def test_the_variable_of_a_device_begins_with_what_a_person_looks_for():
    found = document(record(device(share="s-1")), {}, "boot-1")
    (variable,) = found["devices"][-1]["containerEdits"]["env"]
    assert variable.startswith(
        "DEVHOST_CLAIM_0A000000_0000_4000_8000_000000000000_GPU_0=gpu node-1/card/card-0 s-1 "
    )


def test_no_container_is_given_the_record():
    """A kubelet gives containers the names of devices only; a device that gives nothing names no node."""
    found = document(record(device(0), device(1)), {f"{UID}-gpu-0": {"env": ["CARD=0"]}}, "boot-1")
    given = {one["name"]: one["containerEdits"] for one in found["devices"] if one["name"].startswith(UID)}
    assert given == {f"{UID}-gpu-0": {"env": ["CARD=0"]}, f"{UID}-gpu-1": {"env": ["DEVHOST=1"]}}


def test_the_file_of_an_earlier_version_is_read():
    """It has the variables in the devices themselves."""
    found = document(record(device(0), device(1)), {}, "boot-1")
    kept = found["devices"].pop()["containerEdits"]["env"]
    for one, variable in zip(found["devices"], kept, strict=True):
        one["containerEdits"] = {"env": [variable.rpartition(" name=")[0]]}
    assert parsed(json.dumps(found).encode(), UID) == (record(device(0), device(1)), "boot-1")


async def test_another_run_reads_what_was_written(files, tmp_path):
    await files.write(record(), {})
    fresh = again(tmp_path)
    assert await fresh.read_all() == [record()] and await fresh.read(UID) == record()
    assert fresh.records == {UID: record()}
    assert await fresh.remove(UID) and not await fresh.remove(UID)
    assert await again(tmp_path).read_all() == [] and fresh.records == {}


async def test_a_file_of_an_earlier_boot_is_absent_and_goes(files, tmp_path, file):
    await files.write(record(), {})
    fresh = again(tmp_path, "boot-2")
    assert await fresh.read(UID) is None
    assert await fresh.read_all() == [] and not file.exists()


async def test_a_clock_that_was_set_after_the_boot_makes_no_file_old(files, tmp_path, file):
    await files.write(record(), {})
    os.utime(file, (0, 0))
    assert await again(tmp_path).read_all() == [record()]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    (path.parent / "elsewhere").write_text(dumps(document(record(), {}, "boot-1")))
    path.symlink_to("elsewhere")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def broken(path: Path) -> None:
    path.write_bytes(b'{"kind": "\xff')


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


@pytest.mark.parametrize("make", [pipe, link, loop, broken, huge, deep, Path.mkdir])
async def test_nothing_under_the_name_of_a_file_stops_reading(files, make, file):
    file.parent.mkdir()
    make(file)
    other = UID.replace("0a", "0b")
    good = ClaimRecord(
        ClaimHolder("team", "other", other), DRIVER, (device(cdi_ids=(f"{KIND}={other}-gpu-0",)),)
    )
    await files.write(good, {})
    assert await files.read_all() == [good] and await files.read(UID) is None
    assert os.path.lexists(file)  # it may belong to another version of devhost


async def test_what_is_no_uid_has_no_file(files, tmp_path):
    outside = tmp_path / "victim.json"
    outside.write_text("mine")
    for odd in ("../../victim", "", ".", "a/b", "x" * 64):
        assert await files.read(odd) is None and not await files.remove(odd)
    assert outside.read_text() == "mine"


async def test_files_of_claims_and_of_resources_never_remove_each_other(files, tmp_path, file):
    directory = tmp_path / "cdi"
    specs = SpecFiles(directory)
    await files.write(record(), {})
    await specs.write(specs.path("example.com/card"), "{}")
    await specs.write(specs.path("dra/card"), "{}")
    assert await files.read_all() == [record()]
    removed, _ = await specs.sweep(["dra_{x}"], ())
    assert {path.name for path in removed} == {"devhost_example.com_card.json", "devhost_dra_card.json"}
    assert [path.name for path in directory.iterdir()] == [file.name]
    specs.close()


async def test_devhosts_of_one_machine_have_their_own_files(files, tmp_path):
    trial = ClaimFiles(tmp_path / "cdi", "trial", boot_id=tmp_path / "boot_id")
    await files.write(record(), {})
    assert await trial.read_all() == [] and not await trial.remove(UID)
    await trial.write(record(), {})
    assert len(list((tmp_path / "cdi").iterdir())) == 2
    assert await files.read_all() == [record()]
    trial.close()


async def test_files_in_the_earlier_directory_are_still_read_shown_and_removed(files, tmp_path, file):
    await files.write(record(), {})
    files.move(tmp_path / "new")
    assert await files.read(UID) == record() and files.now()[UID].path == file
    assert await files.remove(UID) and not file.exists() and not files.now()
    await files.write(record(), {})
    path = files.now()[UID].path
    assert path.parent == tmp_path / "new" and path.exists()


async def test_what_a_file_gives_can_be_written_again_without_a_change(files, tmp_path):
    nodes = [{"path": "/dev/a", "type": "c", "major": 1, "minor": 3}]
    mounts = [{"hostPath": "/a", "containerPath": "/a"}]
    edits = {f"{UID}-gpu-0": {"env": ["A=b"], "deviceNodes": nodes, "mounts": mounts}}
    await files.write(record(), edits)
    fresh = again(tmp_path)
    (found,) = await fresh.read_all()
    assert fresh.edits(UID) == edits
    assert not await fresh.rewrite(found, fresh.edits(UID))


async def test_only_files_that_were_removed_or_changed_are_restored(files, file):
    await files.write(record(), {})
    text = file.read_text()
    assert not await files.restore(UID) and not await files.restore("unknown")
    file.unlink()
    assert await files.restore(UID) and file.read_text() == text
    file.write_text("{}")
    assert await files.restore(UID) and file.read_text() == text
    await files.remove(UID)
    assert not await files.restore(UID) and not file.exists()


class Hang:
    """Makes each write to the disk wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.go, self.done = threading.Event(), threading.Event(), threading.Event()
        real = os.fsync

        def fsync(descriptor: int) -> None:
            self.entered.set()
            self.go.wait(60)
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


async def gone(path: Path) -> None:
    """Waits until a directory has no file."""
    await until(lambda: not list(path.iterdir()))


async def test_a_write_that_was_cancelled_leaves_nothing_when_it_ends(files, monkeypatch, file):
    hang = Hang(monkeypatch)
    async with background(files.write(record(), {})):
        await asyncio.to_thread(hang.entered.wait, 60)
    with pytest.raises(EnvironmentFailure, match="an earlier write still hangs"):
        await files.write(record(), {})
    hang.go.set()
    await gone(file.parent)
    await files.write(record(), {})
    assert await files.read(UID) == record()


async def test_a_write_that_takes_too_long_leaves_nothing_when_it_ends(tmp_path, monkeypatch):
    (tmp_path / "boot_id").write_text("boot-1")
    files = ClaimFiles(tmp_path / "cdi", deadline=1.0, boot_id=tmp_path / "boot_id")
    hang = Hang(monkeypatch)
    with pytest.raises(EnvironmentFailure, match="did not answer within"):
        await files.write(record(), {})
    assert files.records == {}
    hang.go.set()
    await gone(tmp_path / "cdi")
    files.close()


OTHER = "gpu.example.org"


def of_other() -> ClaimRecord:
    """What another driver has prepared of the same claim."""
    claimed = device(1, cdi_ids=(f"{OTHER}/claim={UID}-gpu-0",))
    return ClaimRecord(ClaimHolder("team", "claim", UID), OTHER, (claimed,))


async def test_each_driver_of_a_claim_has_its_own_file(files: ClaimFiles, tmp_path: Path) -> None:
    await asyncio.gather(files.of(DRIVER).write(record(), {}), files.of(OTHER).write(of_other(), {}))

    assert [one.name for one in sorted((tmp_path / "cdi").iterdir())] == [
        f"devhost-dra_{UID}.json",
        f"devhost-dra_{UID}_{OTHER}.json",
    ]
    fresh = again(tmp_path)
    assert {one.driver for one in await fresh.read_all()} == {DRIVER, OTHER}
    assert fresh.of(DRIVER).records == {UID: record()}
    assert fresh.of(OTHER).records == {UID: of_other()}
    assert await fresh.of(OTHER).read(UID) == of_other()


async def test_a_driver_removes_and_restores_only_its_own_file(files: ClaimFiles) -> None:
    one, two = files.of(DRIVER), files.of(OTHER)
    await one.write(record(), {})
    assert not await two.remove(UID)
    await two.write(of_other(), {})
    assert await one.remove(UID)
    assert (await one.read(UID), await two.read(UID)) == (None, of_other())
    await one.write(record(), {})
    two.now()[UID].path.unlink()
    assert (await two.restore(UID), await one.restore(UID)) == (True, False)
    assert (await one.read(UID), await two.read(UID)) == (record(), of_other())


async def test_the_nodes_of_a_claim_are_those_of_all_its_drivers(files: ClaimFiles, tmp_path: Path) -> None:
    for driver, found, node in ((DRIVER, record(), "/dev/a"), (OTHER, of_other(), "/dev/b")):
        name = found.devices[0].cdi_ids[0].rpartition("=")[2]
        await files.of(driver).write(found, {name: {"deviceNodes": [{"path": node}]}})
    fresh = again(tmp_path)
    for one in await fresh.read_all():
        fresh.of(one.driver)
    assert [path for path, _ in fresh.nodes(UID)] == ["/dev/a", "/dev/b"]


async def test_devices_are_counted_as_claims_come_change_and_go(files: ClaimFiles, tmp_path: Path) -> None:
    draw, other = Random(7), again(tmp_path)

    def claim(number: int, *devices: int) -> ClaimRecord:
        uid = f"0a000000-0000-4000-8000-{number:012d}"
        ids = [f"{KIND}={uid}-gpu-{one}" for one in devices]
        found = [device(one, cdi_ids=(name,)) for one, name in zip(devices, ids, strict=True)]
        return ClaimRecord(ClaimHolder("team", f"claim-{number}", uid), DRIVER, tuple(found))

    for _ in range(60):
        one = claim(draw.randrange(6), *draw.sample(range(5), draw.randint(1, 3)))
        uid = one.claim.uid
        match draw.choice(["write", "write", "remove", "read", "another run"]):
            case "write":
                await files.remove(uid)
                await files.write(one, {})
            case "remove":
                await files.remove(uid)
            case "read":
                await files.read(uid)
            case _:
                await other.remove(uid)
                await files.read_again()
        expected = Counter(
            (each.pool, each.device) for held in files.records.values() for each in held.devices
        )
        assert dict(files.devices) == dict(expected)
    assert len(files.of(DRIVER).devices) <= 5
    other.close()
