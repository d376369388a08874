"""What a container was given stays its own, and is a problem once its device has something else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from devhost_testing.kubelet import ContainerStartError, UnexpectedAdmissionError
from devhost_testing.kubelet import events as ev
from status_values import rows, status
from sticks import TTY, USB0, USB1, A, B, Sticks, given, healthy, problems, reason

from devhost.backend import Device, claim
from devhost.backend.observe import hookimpl

OTHER = "example.com/other"
LINE = f"name: {TTY}, backend: toy"
SWAPPED = {A: USB1, B: USB0}
MOVED = f"a container was given {USB0} for {A}, which is {USB1} now: delete the pod"
AND_OTHER = f" ({USB0} is {B} now)"


@pytest.fixture
def sticks(rig, tmp_path) -> Sticks:
    return Sticks(rig, tmp_path)


async def offered(kubelet, *devices: str) -> None:
    await kubelet.wait_for(lambda: TTY in kubelet.capacity() and healthy(kubelet) == set(devices))


async def held(rig, host, device: str) -> None:
    """The kubelet has named the holder, and the record is written."""
    await rig.until(lambda: any(row["device"] == device and row["holder"] for row in rows(host).values()))


async def recorded(rig, sticks, text: str = A) -> None:
    place = sticks.options["state_dir"]
    await rig.until(lambda: any(text in file.read_text() for file in place.glob("given-*.json")))


async def withheld(rig, host, path: str) -> None:
    """The plan withholds the second stick because of the node at this path."""
    await rig.until(
        lambda: (
            [one["device"] for one in status(host)["refusals"] if f"node:{path} is in use" in one["reason"]]
            == [B]
        )
    )


async def given_and_stopped(rig, kubelet, sticks, line: str = LINE) -> None:
    """Pod ``one`` gets the first stick, then devhost stops."""
    async with sticks.running(line) as host:
        await offered(kubelet, A, B)
        await given(kubelet, "one")
        await held(rig, host, A)
        await recorded(rig, sticks)
    await kubelet.wait_for(lambda: not healthy(kubelet))


async def test_no_look_at_what_a_container_was_given_delays_the_next_allocate(rig, kubelet):
    rig.hurry(given=3600.0, given_soon=3600.0)
    asked: list[str] = []
    rig.scripts["toy"].on_allocate = lambda devices: asked.extend(device.id for device in devices)
    async with rig.running(LINE) as host:
        await offered(kubelet, "d0", "d1")
        (first,) = (await kubelet.admit("one", "main", TTY, 1)).device_ids
        await held(rig, host, first)
        assert asked == [first]  # a look asks the backend again, because its devices claim no node


@pytest.mark.parametrize("mounted", [False, True], ids=["device", "mount"])
@pytest.mark.parametrize("lost", ["nothing", "record", "checkpoint"])
async def test_after_a_swap_and_a_restart_no_second_pod_gets_the_first_ones_node(
    rig, kubelet, sticks, lost, mounted
):
    rig.scripts["toy"].mounted = mounted
    await given_and_stopped(rig, kubelet, sticks)
    if lost == "record":
        shutil.rmtree(sticks.options["state_dir"])
    if lost == "checkpoint":
        (rig.kubelet_dir / "kubelet_internal_checkpoint").write_text("{")
    sticks.plug(SWAPPED)
    async with sticks.running() as host:
        await rig.until(lambda: reason(host, A) == MOVED + AND_OTHER)
        await withheld(rig, host, USB0)
        await kubelet.wait_for(
            lambda: {(one.id, one.health) for one in kubelet.devices(TTY)} == {(A, "Unhealthy")}
        )
        with pytest.raises(UnexpectedAdmissionError):
            await kubelet.admit("two", "main", TTY, 1)
        kubelet.release("one")
        await offered(kubelet, A, B)
        assert await given(kubelet, "two") == (A, USB1)
        await rig.until(lambda: problems(host) == [])


async def test_with_cdi_names_no_second_pod_gets_the_first_ones_node_either(rig, kubelet, sticks, tmp_path):
    rig.write(f"{LINE}, inject: cdi")
    rig.config.write_text(rig.config.read_text() + f"cdi: {{directory: {tmp_path / 'cdi'}}}\n")
    null, zero = "/dev/null", "/dev/zero"
    sticks.plug_real({A: null, B: zero})
    async with sticks.running() as host:
        await offered(kubelet, A, B)
        await kubelet.admit("one", "main", TTY, 1)
        await held(rig, host, A)
        await recorded(rig, sticks)
    sticks.plug_real({A: zero, B: null})
    async with sticks.running() as host:
        told = f"a container was given {null} for {A}, which is {zero} now"
        advice = f"restart the container or delete the pod ({null} is {B} now)"
        await rig.until(lambda: reason(host, A) == f"{told}: {advice}")
        await offered(kubelet)


async def test_a_device_that_is_not_what_a_container_was_given_is_a_problem_in_every_output(
    rig, kubelet, sticks, caplog
):
    seen = []

    class Observer:
        @hookimpl
        def devhost_health_changed(self, news):
            seen.extend(news)

    rig.observe(Observer())
    async with sticks.running(LINE) as host:
        await offered(kubelet, A, B)
        assert await given(kubelet, "one") == (A, USB0)
        await held(rig, host, A)
        sticks.replug(SWAPPED)
        await rig.until(lambda: (f"{TTY} {A}", MOVED + AND_OTHER, ["one"]) in problems(host))
        await offered(kubelet)
        (resource,) = status(host)["resources"]
        (row,) = [one for one in resource["devices"] if one["device"] == A]
        assert (row["health"], row["reason"]) == ("Unhealthy", MOVED + AND_OTHER)
        assert [one["pod"] for one in row["heldBy"]] == ["one"]
        await rig.until(lambda: [one.device.id for one in seen if not one.health.healthy] == [A])
        (line,) = [
            one for one in caplog.records if one.msg == "a container has another device than it was given"
        ]
        assert line.fields["holder"].endswith("/one/main")
        assert (line.fields["device"], line.fields["reason"]) == (A, MOVED + AND_OTHER)
        sticks.replug({A: USB0, B: USB1})
        await kubelet.wait_for(lambda: A in healthy(kubelet))
        assert not reason(host, A)


async def test_another_device_at_the_path_of_one_that_is_gone_is_a_problem(rig, kubelet, sticks):
    await given_and_stopped(rig, kubelet, sticks)
    sticks.plug({B: USB0})
    async with sticks.running() as host:
        gone = f"a container was given {USB0} for {A}, which is gone, and {USB0} is {B} now: delete the pod"
        await rig.until(lambda: (f"{TTY} {A}", gone, ["one"]) in problems(host))
        await offered(kubelet)
        with pytest.raises(UnexpectedAdmissionError):
            await kubelet.admit("two", "main", TTY, 1)


async def test_a_device_that_is_only_gone_is_reported_as_gone_and_comes_back(rig, kubelet, sticks):
    async with sticks.running(LINE) as host:
        await offered(kubelet, A, B)
        await given(kubelet, "one")
        await held(rig, host, A)
        sticks.replug({B: USB1})
        await rig.until(lambda: reason(host, A) == "the device is gone")
        sticks.replug({A: USB0, B: USB1})
        await offered(kubelet, A, B)


async def test_what_a_device_had_only_meanwhile_is_offered_again(rig, kubelet, sticks):
    async with sticks.running(LINE) as host:
        await offered(kubelet, A, B)
        assert await given(kubelet, "one") == (A, USB0)
        await held(rig, host, A)
        sticks.replug(SWAPPED)
        await offered(kubelet)
        sticks.replug({A: USB0, B: USB1})
        await offered(kubelet, A, B)
        assert await given(kubelet, "two") == (B, USB1)


async def test_a_node_that_a_backend_gave_without_a_claim_stays_in_use_over_a_restart(rig, kubelet, sticks):
    rig.scripts["toy"].devices = [Device("p0")]
    rig.scripts["toy"].nodes = rig.scripts["other"].nodes = {"p0": USB0, "o0": USB0}
    rig.scripts["other"].devices = [Device("o0", claims=frozenset({claim.node(USB0)}))]
    async with sticks.running(LINE, f"name: {OTHER}, backend: other", allocatable={TTY: 1, OTHER: 1}) as host:
        await given(kubelet, "one")
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TTY: 1, OTHER: 0})
        await held(rig, host, "p0")
        await recorded(rig, sticks, "unclaimed")
    await kubelet.wait_for(lambda: not kubelet.healthy(OTHER) and not healthy(kubelet))
    async with sticks.running() as host:
        await rig.until(lambda: [one["device"] for one in status(host)["refusals"]] == ["o0"])
        await kubelet.wait_for(lambda: healthy(kubelet) == {"p0"})
        assert not kubelet.healthy(OTHER)


@pytest.mark.parametrize("of", ["model", "all"])
async def test_what_a_token_no_longer_means_goes_to_no_other_pod_after_a_restart(rig, kubelet, sticks, of):
    """The token of a unit, or of all devices, names no device: what it was given is in the record."""
    line = f"{LINE}, share: {{of: {of}}}"
    async with sticks.running(line, allocatable={TTY: 1}) as host:
        assert len((await kubelet.admit("one", "main", TTY, 1)).response.devices) == 2
        await rig.until(lambda: any(one.holder for one in host.allocations.held()))
        await recorded(rig, sticks)
    rig.scripts["toy"].devices[0] = replace(rig.scripts["toy"].devices[0], attributes={"model": "x200"})
    async with sticks.running(f"{line}, where: {{model: x100}}", f"name: {OTHER}, backend: toy") as host:
        await rig.until(
            lambda: [one["device"] for one in status(host)["refusals"] if one["kind"] == "held"] == [A]
        )
        assert OTHER not in kubelet.capacity()
        kubelet.release("one")
        await kubelet.wait_for(lambda: kubelet.allocatable().get(OTHER) == 1)


async def test_a_number_that_changed_is_a_problem_and_what_has_the_old_one_is_withheld(rig, kubelet, sticks):
    await given_and_stopped(rig, kubelet, sticks)
    sticks.number(USB0, "c511:7")
    sticks.number(USB1, "c188:0")
    told = f"a container was given {USB0} as c188:0 for {A}, which is c511:7 now"
    async with sticks.running() as host:
        await rig.until(lambda: reason(host, A) == f"{told}: restart the container or delete the pod")
        await withheld(rig, host, USB1)
        kubelet.release("one")
        await offered(kubelet, A, B)


async def test_a_container_that_only_the_checkpoint_knows_is_followed_from_then_on(rig, kubelet, sticks):
    await given_and_stopped(rig, kubelet, sticks)
    shutil.rmtree(sticks.options["state_dir"])
    async with sticks.running() as host:
        await held(rig, host, A)
        await recorded(rig, sticks, "c188:0")
        sticks.number(USB0, "c511:7")
        await rig.until(lambda: "as c188:0" in reason(host, A))


async def test_a_boot_gives_new_numbers_and_no_problem(rig, kubelet, sticks):
    await given_and_stopped(rig, kubelet, sticks)
    sticks.boot("boot-2")
    sticks.number(USB0, "c511:7")
    async with sticks.running() as host:
        await offered(kubelet, A, B)
        await held(rig, host, A)
        assert problems(host) == []


async def test_after_a_boot_no_pod_gets_the_node_that_another_ones_answer_names(rig, kubelet, sticks):
    """The kubelet keeps its checkpoint, and starts the containers with the old answers."""
    await given_and_stopped(rig, kubelet, sticks)
    await kubelet.stop()
    sticks.boot("boot-2")
    sticks.plug(SWAPPED)
    await kubelet.start()
    async with sticks.running() as host:
        await rig.until(lambda: reason(host, A) == MOVED + AND_OTHER)
        await offered(kubelet)


async def test_other_shares_of_a_device_stay_available(rig, kubelet, sticks):
    async with sticks.running(f"{LINE}, share: {{replicas: 2}}", allocatable={TTY: 4}) as host:
        got = await kubelet.admit("one", "main", TTY, 1)
        assert got.device_ids == (f"{A}::0",)
        await held(rig, host, A)
        sticks.replug({A: "/dev/ttyUSB7", B: USB1})
        await kubelet.wait_for(lambda: healthy(kubelet) == {f"{A}::1", f"{B}::0", f"{B}::1"})
        assert reason(host, A).startswith(f"a container was given {USB0} for {A}, which is /dev/ttyUSB7 now")


@pytest.mark.parametrize(
    "damage", ["{", "[]", "null", '{"version": 9}', '{"Data": {"PodDeviceEntries": [7]}}', "\0" * 10]
)
async def test_a_damaged_source_refuses_nothing_and_is_logged_once(rig, kubelet, sticks, caplog, damage):
    await given_and_stopped(rig, kubelet, sticks)
    (record,) = sticks.options["state_dir"].glob("given-*.json")
    record.write_text(damage)
    (rig.kubelet_dir / "kubelet_internal_checkpoint").write_text(damage)
    async with sticks.running() as host:
        await offered(kubelet, A, B)
        await held(rig, host, A)
        assert problems(host) == []
        assert await given(kubelet, "two") == (B, USB1)
        await recorded(rig, sticks, B)
        lines = [one for one in caplog.records if one.msg == "what containers were given is not known"]
        assert len(lines) == 2


async def test_a_checkpoint_that_stays_damaged_is_not_logged_as_known_again(rig, sticks, caplog):
    rig.write(LINE)
    (rig.kubelet_dir / "kubelet_internal_checkpoint").write_text("{")
    caplog.set_level("INFO", "devhost")
    async with sticks.running() as host:
        await host.given.read()
        assert caplog.messages.count("what containers were given is not known") == 1
        assert "it is known again" not in caplog.messages


async def test_a_record_that_is_removed_meanwhile_is_written_again(rig, kubelet, sticks):
    rig.write(LINE)
    async with sticks.running() as host:
        await offered(kubelet, A, B)
        await given(kubelet, "one")
        await rig.until(host.given.file.exists)
        host.given.file.parent.rename(rig.config.parent / "lost")
        for _ in range(4):  # the first times, something else may be new
            await rig.until(lambda: host.given.file.exists() and A in host.given.file.read_text())
            host.given.file.unlink()


async def test_a_record_that_cannot_be_written_costs_no_service_and_is_a_problem(rig, kubelet, sticks):
    state = sticks.options["state_dir"]
    state.write_text("a file")
    rig.write(LINE)

    def unrecorded(host) -> list[tuple[str, str]]:
        return [
            (one["subject"], one["reason"])
            for one in status(host)["problems"]
            if one["kind"] == "record" and "what containers were given" in one["reason"]
        ]

    async with sticks.running() as host:
        await offered(kubelet, A, B)
        assert unrecorded(host) == []  # no container would miss it
        assert await given(kubelet, "one") == (A, USB0)
        await rig.until(lambda: unrecorded(host))
        ((file, why),) = unrecorded(host)
        assert file == str(host.given.file)
        assert why == (
            f"what containers were given is not recorded: cannot write {file}: Not a directory"
            " (--state-dir must be a directory that devhost may write to)"
        )
        state.unlink()
        await rig.until(lambda: unrecorded(host) == [])


async def test_what_ended_since_a_restart_leaves_the_record_with_the_kubelets_checkpoint(
    rig, kubelet, sticks
):
    await given_and_stopped(rig, kubelet, sticks)
    (record,) = sticks.options["state_dir"].glob("given-*.json")
    async with sticks.running() as host:
        await held(rig, host, A)
        assert A in record.read_text()
        kubelet.release("one")
        await rig.until(lambda: A not in record.read_text())


async def test_the_record_is_private_and_readable_by_people(rig, kubelet, sticks):
    await given_and_stopped(rig, kubelet, sticks)
    (record,) = sticks.options["state_dir"].glob("given-*.json")
    assert (record.stat().st_mode & 0o777, record.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    (row,) = json.loads(record.read_text())["given"]
    assert row == {"resource": TTY, "tokens": [A], "nodes": [[USB0, "c188:0", "toy", A]]}


async def test_a_start_is_checked_only_for_an_entry_with_that_key(rig, kubelet, sticks):
    async with sticks.running(LINE) as host:
        await offered(kubelet, A, B)
        rig.write(f"{LINE}, checkStarts: true")
        host.reload()
        await rig.until(lambda: len(kubelet.events.of(ev.OptionsRead, TTY)) >= 2)
        assert [one.pre_start_required for one in kubelet.events.of(ev.OptionsRead, TTY)] == [False, True]


async def test_a_container_starts_only_with_the_device_that_it_was_given(rig, kubelet, sticks):
    async with sticks.running(f"{LINE}, checkStarts: true") as host:
        await offered(kubelet, A, B)
        await given(kubelet, "one")
        await kubelet.start_container("one", "main")
        await held(rig, host, A)
        sticks.replug(SWAPPED)
        await rig.until(lambda: reason(host, A))
        with pytest.raises(ContainerStartError, match=f"which is {USB1} now: delete the pod"):
            await kubelet.start_container("one", "main")
        sticks.replug({B: USB1})
        await rig.until(lambda: reason(host, A) == "the device is gone")
        with pytest.raises(ContainerStartError, match=f"the container cannot start: {A} is gone"):
            await kubelet.start_container("one", "main")
        sticks.replug({A: USB0, B: USB1})
        await rig.until(lambda: not reason(host, A))
        await kubelet.start_container("one", "main")


async def test_a_checked_start_takes_the_present_number(rig, kubelet, sticks):
    rig.write(f"{LINE}, checkStarts: true")
    await given_and_stopped(rig, kubelet, sticks, f"{LINE}, checkStarts: true")
    sticks.number(USB0, "c511:7")
    async with sticks.running() as host:
        await rig.until(lambda: "c511:7" in reason(host, A))
        await offered(kubelet, B)
        await kubelet.start_container("one", "main")
        await rig.until(lambda: not reason(host, A))
        await offered(kubelet, A, B)


async def test_a_unit_is_unhealthy_while_a_member_has_another_node_than_its_container_was_given(
    rig, kubelet, sticks
):
    async with sticks.running(f"{LINE}, share: {{of: model}}") as host:
        await offered(kubelet, "x100")
        await kubelet.admit("one", "main", TTY, 1)
        await held(rig, host, "x100")
        sticks.replug({A: USB0, B: "/dev/ttyUSB2"})
        await offered(kubelet)
        moved = f"a container was given {USB1} for {B}, which is /dev/ttyUSB2 now: delete the pod"
        moved += " (nothing is there now)"  # once the node has been looked at
        await rig.until(lambda: [(name, why) for name, why, _ in problems(host)] == [(f"{TTY} {B}", moved)])
        (resource,) = status(host)["resources"]
        assert [one["reason"] for one in resource["devices"]] == [moved]
        assert [one["reason"] for one in resource["together"]] == ["", moved]
        sticks.replug({A: USB0, B: USB1})
        await offered(kubelet, "x100")
        assert problems(host) == []
