"""What ``devhost status`` shows if there are more devices than fit on the screen."""

from __future__ import annotations

from collections.abc import Iterable

from status_document import NOW, device, document
from status_values import Json, document_of

from devhost.cli.status_report import show

DOWN = "port 1 is down"


def shared(name: str, replicas: int, reason: str = DOWN, held: Iterable[int] = ()) -> list[Json]:
    """The tokens of one device, of which these numbers are held."""
    tokens = [device(f"{name}::{n}", reason, allocated=n in held) for n in range(replicas)]
    return [{**token, "device": name} for token in tokens]


def two(first: list[Json], second: list[Json]) -> Json:
    """A host with rdma/hca and sriov/net."""
    found = document(first)
    (hca,) = found["resources"]
    hca["name"] = "rdma/hca"
    found["resources"].append({**hca, "name": "sriov/net", "devices": second})
    return found


def listed(text: str) -> list[str]:
    """The lines of unhealthy devices, without SINCE and NUMA."""
    lines = [line.split() for line in text.splitlines() if "  Unhealthy  " in line]
    return [" ".join(word for word in line if word not in ("45s", "0,1")) for line in lines]


def test_the_tokens_of_an_unhealthy_device_share_a_row_so_that_other_devices_are_shown() -> None:
    found = two(shared("0000:3b:00.0", 100), [device("0000:5e:02.1", "its link is down")])
    text = show(document_of(found), NOW)
    assert listed(text) == [
        "rdma/hca 0000:3b:00.0::0 and 99 similar Unhealthy - port 1 is down",
        "sriov/net 0000:5e:02.1 Unhealthy - its link is down",
    ]
    assert "not shown" not in text
    everything = listed(show(document_of(found), NOW, everything=True))
    assert len(everything) == 101 and everything[99].split()[1] == "0000:3b:00.0::99"


def test_a_held_share_of_an_unhealthy_device_has_a_separate_row() -> None:
    text = show(document_of(document(shared("hca", 100, held=(0, 7)))), NOW)
    assert listed(text) == [
        f"example.com/serial hca::0 Unhealthy default/meter-0/main {DOWN}",
        f"example.com/serial hca::1 and 97 similar Unhealthy - {DOWN}",
        f"example.com/serial hca::7 Unhealthy default/meter-0/main {DOWN}",
    ]


def test_tokens_with_different_reasons_have_separate_rows() -> None:
    later = shared("a", 40)[20:]
    for token in later:
        token["since"] = "2026-11-20T11:59:15.500Z"
    found = [*shared("a", 20), *later, *shared("b", 10), *shared("c", 5, "it hangs"), *shared("d", 30, "")]
    text = show(document_of(document(found)), NOW)
    assert [line.split(" Unhealthy")[0].split(" ", 1)[1] for line in listed(text)] == [
        "a::0 and 19 similar",
        "a::20 and 19 similar",
        "b::0 and 9 similar",
        "c::0 and 4 similar",
    ]
    assert "d::0 and 29 similar" in text
    assert "more healthy" not in text


def test_an_unhealthy_device_shared_by_many_pods_hides_no_other_device_and_no_holder() -> None:
    other = [device(f"vf{n}", "its link is down") for n in range(3)]
    text = show(document_of(two(shared("hca", 100, held=range(100)), other)), NOW)
    names = [line.split()[1] for line in listed(text)]
    assert names == [*(f"hca::{n}" for n in range(100)), "vf0", "vf1", "vf2"]
    assert "not shown" not in text


def test_a_resource_with_many_unhealthy_devices_does_not_crowd_out_the_others() -> None:
    text = show(document_of(two([device(f"d{n}", "gone") for n in range(500)], [device("vf0", "gone")])), NOW)
    assert [line.split()[1] for line in listed(text)][-2:] == ["d48", "vf0"]
    assert "451 unhealthy devices not shown (--all shows them)" in text


def test_unhealthy_devices_are_shown_among_ten_thousand_devices() -> None:
    devices = [device(f"d{i}", "gone" if i % 5000 == 7 else "") for i in range(10_000)]
    text = show(document_of(document(devices)), NOW)
    assert len(text.splitlines()) < 45
    assert "d7 " in text and "d5007" in text
    assert "\n... and 9976 more healthy devices (--all)\n" in text
    assert len(show(document_of(document(devices)), NOW, everything=True).splitlines()) > 10_000


def test_unlisted_unhealthy_devices_are_counted() -> None:
    text = show(document_of(document([device(f"d{i}", "gone") for i in range(10_000)])), NOW)
    assert len(text.splitlines()) < 80
    assert "9950 unhealthy devices not shown (--all shows them)" in text


def healthy(text: str) -> list[str]:
    """The names of the healthy devices that are listed."""
    return [line.split()[1] for line in text.splitlines() if "  Healthy  " in line]


def test_healthy_devices_are_listed_up_to_a_screenful_and_the_rest_is_counted() -> None:
    found = document([device(f"d{i}") for i in range(100)])
    text = show(document_of(found), NOW)
    assert healthy(text) == [f"d{i}" for i in range(24)]
    assert "\n... and 76 more healthy devices (--all)\n" in text
    text = show(document_of(found), NOW, screen=40)
    assert healthy(text) == [f"d{i}" for i in range(40)]
    assert "\n... and 60 more healthy devices (--all)\n" in text
    text = show(document_of(document([device(f"d{i}") for i in range(25)])), NOW)
    assert "\n... and 1 more healthy device (--all)\n" in text
    assert "more healthy" not in show(document_of(document([device(f"d{i}") for i in range(24)])), NOW)


def test_held_devices_are_always_listed_with_their_holder() -> None:
    text = show(document_of(document([device(f"d{i}", allocated=i % 100 == 50) for i in range(4000)])), NOW)
    rows = [line.split() for line in text.splitlines() if "default/meter-0/main" in line]
    assert [row[1] for row in rows] == [f"d{i}" for i in range(50, 4000, 100)]
    assert healthy(text) == [row[1] for row in rows]
    assert "\n... and 3960 more healthy devices (--all)\n" in text


def test_held_unhealthy_and_healthy_devices_share_the_screen_in_list_order() -> None:
    devices = [device(f"d{i}", "gone" if i == 70 else "", allocated=i == 80) for i in range(100)]
    names = [
        line.split()[1]
        for line in show(document_of(document(devices)), NOW).splitlines()
        if "/serial  d" in line
    ]
    assert names == [*(f"d{i}" for i in range(22)), "d70", "d80"]


def test_free_shares_of_a_healthy_device_share_a_row_if_there_are_too_many() -> None:
    text = show(
        document_of(two(shared("hca", 100, reason="", held=[3]), [device("vf0"), device("vf1")])), NOW
    )
    rows = [line for line in text.splitlines() if "  Healthy  " in line]
    assert [line.split("  ")[1].strip() for line in rows] == [
        "hca::0 and 98 similar",
        "hca::3",
        "vf0",
        "vf1",
    ]


def test_of_many_devices_handed_out_together_only_unhealthy_ones_are_shown() -> None:
    found = document([device("all::0")])
    found["resources"][0]["together"] = [
        {"device": f"d{i}", "health": "Unhealthy" if i == 77 else "Healthy", "reason": "", "numaNodes": []}
        for i in range(600)
    ]
    text = show(document_of(found), NOW)
    assert len(text.splitlines()) < 20
    assert "d77" in text and "d78" not in text
    assert "599 healthy devices handed out together not shown (--all shows them)" in text
    assert len(show(document_of(found), NOW, everything=True).splitlines()) > 600


def test_devices_that_left_for_one_reason_and_what_one_container_holds_unlisted_are_one_row_each() -> None:
    made = document()
    reason = "it is moving from the device plugin to DRA: devhost waits"
    at = made["devhost"]["startedAt"]
    made["resources"][0]["departed"] = [{"device": f"d{n}", "reason": reason, "at": at} for n in range(20)]
    holder: Json = {"namespace": "default", "pod": "train", "container": "main"}
    made["held"] = [
        {"resource": "a/b", "id": f"h{n}", "devices": [f"h{n}"], "holder": holder, "reason": "it left"}
        for n in range(39)
    ]
    for everything in (False, True):
        text = show(document_of(made), NOW, everything=everything)
        assert text.count(reason) == 1 and "d0 and 19 similar" in text
        assert text.count("it left") == 1 and "h0 and 38 similar" in text
