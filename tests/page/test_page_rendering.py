"""Rendering a status document as HTML."""

from __future__ import annotations

from datetime import timedelta
from html.parser import HTMLParser
from itertools import pairwise

import page_document as made
import pytest
from status_values import Json, document_of

from devhost.allocation.inventory import FORGOTTEN
from devhost.backend.model import Device, Holder
from devhost.planning.claims import ClaimIndex, Held, Reason
from devhost.telemetry.document import without_holders
from devhost.telemetry.page import devices
from devhost.telemetry.page.content import headers, render, whole

EVIL = "<script>alert(1)</script>\"'&\n\x1b[31m\u202e"


class Reading(HTMLParser):
    """The text of a page, and its elements with their parents; all of them must be nested correctly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.around: list[tuple[str, dict[str, str | None]]] = []
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.words: list[str] = []
        self._breaks = False
        self.feed(text)
        self.close()
        assert self.around == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), [name for name, _ in self.around]))
        self._breaks = tag == "wbr"
        if tag not in ("meta", "link", "input", "wbr"):
            self.around.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self._breaks = False
        assert self.around.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.around and self.around[-1][0] not in ("style", "script"):
            self.words.append(self.words.pop() + data if self._breaks else data)
        self._breaks = False

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def attributes(self, tag: str, within: str = "") -> list[dict[str, str | None]]:
        """The attributes of every element of a type, or only of those within another type."""
        return [a for name, a, around in self.elements if name == tag and (not within or within in around)]


def shown(document: Json, *, pods: bool = True) -> Reading:
    return Reading(render(document_of(document), made.NODE, made.NOW, pods=pods).part)


def listed(document: Json) -> list[str | None]:
    """The ids of devices on the page, in order."""
    found = shown(document).attributes("tr", within="details")
    return [row["data-key"] for row in found if "data-key" in row]


def many(count: int, ill: int = 0) -> Json:
    found = [made.device(f"d{n}", "it is broken" if n >= count - ill else "") for n in range(count)]
    return made.document(made.resource("example.com/toy", "toy", found))


def test_the_page_shows_everything_with_the_texts_of_the_command() -> None:
    text = shown(made.busy_node()).text
    for words in (
        "gpu-node-07",
        "devhost 0.1.0 Up 8d Config /etc/devhost/devhost.yaml Generation 3 Last reload loaded 42m ago",
        "1 problem 5 resources, 14 of 15 devices healthy, 7 in use",
        f"device {made.LOST} 23m",
        "nvidia.com/gpu gpu 3/4 3 registered 1 8d ago",
        f"Unhealthy 23m 1 {made.LOST}",
        "FT4XK2Q0 Healthy 5h plant/meter-0/reader",
        "Recently left example.com/serial Left recently Ago Reason FT9ZB1C7 6m the device is gone",
        "14 in /etc/kubernetes/node-feature-discovery/features.d/devhost_gpu",
        "claimed resources[2]: pci:0000:5e:02.7 is already used by",
        "/metrics /healthz /readyz /status.json",
    ):
        assert words in text


def test_empty_sections_are_omitted() -> None:
    text = shown(made.document()).text
    assert "No problems" in text
    assert "No resources yet." in text
    for heading in ("Problems", "Devices", "Backends", "Observers", "Held, not listed", "Refusals", "Reason"):
        assert heading not in text


def test_a_rejected_configuration_and_an_absent_kubelet_are_shown_at_the_top() -> None:
    document = made.document()
    document["devhost"]["lastReload"]["result"] = "rejected"
    document["kubelet"]["socket"] = "absent"
    text = shown(document).text
    assert "REJECTED 42m ago, generation 3 stays" in text
    assert "/var/lib/kubelet/device-plugins ABSENT" in text


def test_text_from_hardware_never_becomes_markup() -> None:
    names = made.device("x", EVIL, "a/b/c")
    names["id"] = names["device"] = EVIL
    assert names["holder"] is not None
    names["holder"]["pod"] = EVIL
    held = {"resource": EVIL, "id": EVIL, "devices": [EVIL], "holder": names["holder"], "reason": EVIL}
    refused = [{"device": EVIL, "reason": EVIL}]
    left = {"device": EVIL, "reason": EVIL, "at": made.ago()}
    waits = {"state": "waiting", "reason": EVIL, "since": EVIL}
    labels = {"file": EVIL, "count": 1, "reason": EVIL}
    document = made.document(
        made.resource(EVIL, EVIL, [names], lastError=EVIL, departed=[left], together=[names]),
        held=[held],
        backends=[
            made.backend(EVIL, 1, reason=EVIL, refusedDevices=refused, provisioning=waits, labels=labels)
        ],
        refusals=[{"backend": EVIL, "device": EVIL, "kind": EVIL, "reason": EVIL}],
        problems=[made.problem("device", f"{EVIL} {EVIL}", EVIL)],
    )
    document["devhost"]["config"] = EVIL
    document["kubelet"]["dir"] = EVIL
    rendering = render(document_of(document), EVIL, made.NOW)
    page = whole(rendering).decode()
    reading = Reading(page)
    assert len(reading.attributes("script")) == 1
    assert all(not name.startswith("on") for _, attributes, _ in reading.elements for name in attributes)
    assert reading.words.count("<script>alert(1)</script>\"'&\\n\\x1b[31m\\u202e") >= 15
    assert "\n" not in rendering.part
    assert not {"\x1b", "\u202e"} & set(page)


def test_every_table_has_a_caption_and_headers() -> None:
    reading = shown(made.busy_node())
    assert len(reading.attributes("table")) == len(reading.attributes("caption")) == 10
    assert all(header.get("scope") == "col" for header in reading.attributes("th", within="thead"))
    assert all(header.get("scope") == "row" for header in reading.attributes("th", within="tbody"))


def test_heading_levels_are_in_order() -> None:
    levels = [
        int(name[1]) for name, _, _ in shown(made.busy_node()).elements if name in ("h1", "h2", "h3", "h4")
    ]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_ids_are_unique_and_links_within_the_page_work() -> None:
    reading = Reading(whole(render(document_of(made.busy_node()), made.NODE, made.NOW)).decode())
    ids = [attributes["id"] for _, attributes, _ in reading.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    targets = [str(link["href"])[1:] for link in reading.attributes("a") if str(link["href"]).startswith("#")]
    assert targets and set(targets) <= set(ids)


def test_the_title_counts_the_problems() -> None:
    assert render(document_of(made.busy_node()), "n1", made.NOW).title == "(1) n1 · devhost"
    assert render(document_of(made.document()), "n1", made.NOW).title == "n1 · devhost"


def test_a_row_for_several_problems_counts_as_several() -> None:
    few = [made.problem("device", f"a/b d{n}", "it hangs") for n in range(20)]
    rest = made.problem("device", "a/b", "2000 more devices are unhealthy", count=2000)
    document = made.document(problems=[*few, rest])
    assert render(document_of(document), "n1", made.NOW).title == "(2,020) n1 · devhost"
    reading = shown(document)
    (verdict,) = (one for one in reading.attributes("section") if one.get("data-news") == "verdict")
    assert verdict["data-announce"] == "2,020 problems" and "2,020 problems 0 resources" in reading.text


def test_devices_without_a_name_are_labelled_so() -> None:
    refused = {"device": "", "reason": "its id is empty"}
    document = made.document(
        backends=[made.backend("toy", 0, refusedDevices=[refused])],
        refusals=[{"backend": "toy", "device": "", "kind": "claimed", "reason": "resources[0]: claimed"}],
        problems=[
            made.problem("device", "", "61 more devices are unhealthy", count=61),
            made.problem("refused", "toy ", "its id is empty"),
        ],
    )
    text = shown(document).text
    for words in (
        "(no id) toy its id is empty",
        "(no id) toy claimed resources[0]",
        "(others) device 61 more",
        "toy (no id) refused its id is empty",
    ):
        assert words in text


def test_ages_refer_to_the_time_of_the_page_and_have_the_exact_time() -> None:
    document = made.document()
    part = render(document_of(document), made.NODE, made.NOW + timedelta(minutes=18)).part
    at = document["devhost"]["lastReload"]["at"]
    assert f'<time datetime="{at}" title="{at}">60m</time>' in part


def test_unhealthy_devices_come_first_and_the_rest_is_counted() -> None:
    document = many(10_000, ill=3)
    assert listed(document)[:5] == ["d9997", "d9998", "d9999", "d0", "d1"]
    assert len(listed(document)) == devices.MOST
    assert "9,800 more healthy devices: /status.json" in shown(document).text


def test_unhealthy_devices_over_the_limit_are_counted() -> None:
    document = many(1000, ill=1000)
    assert len(listed(document)) == devices.MOST
    assert "800 more devices: /status.json" in shown(document).text


def test_the_tokens_of_an_unhealthy_device_share_a_row_so_that_other_devices_are_shown() -> None:
    tokens = [made.device(f"hca0::{n}", "port 1 is down", "ns/p/c" if n == 3 else "") for n in range(300)]
    others = [made.device("hca1::0", "it hangs"), *(made.device(f"hca2::{n}") for n in range(50))]
    document = made.document(made.resource("rdma/hca", "rdma", [*tokens, *others]))
    assert listed(document)[:4] == ["hca0::0", "hca0::3", "hca1::0", "hca2::0"]
    assert len(listed(document)) == 53
    text = shown(document).text
    assert "hca0::0 and 298 similar Unhealthy" in text and "hca0::3 Unhealthy" in text
    assert "/status.json" not in text.partition("Devices")[2].rpartition("/metrics")[0]


def test_an_unhealthy_device_shared_by_many_pods_leaves_space_for_the_others() -> None:
    tokens = [made.device(f"hca0::{n}", "port 1 is down", "ns/p/c") for n in range(300)]
    document = made.document(made.resource("rdma/hca", "rdma", [*tokens, made.device("hca1::0", "it hangs")]))
    assert listed(document)[-2:] == [f"hca0::{devices.MOST - 2}", "hca1::0"]
    assert "101 more devices: /status.json" in shown(document).text


def test_a_small_number_of_devices_have_a_row_each() -> None:
    tokens = [made.device(f"hca0::{n}", "port 1 is down") for n in range(devices.MOST)]
    assert len(listed(made.document(made.resource("rdma/hca", "rdma", tokens)))) == devices.MOST


def test_many_resources_share_the_space() -> None:
    one = many(300)["resources"][0]
    document = made.document(*[made.resource(f"example.com/r{n}", "toy", one["devices"]) for n in range(100)])
    assert len(listed(document)) == 100 * (devices.IN_ALL // 100)


def test_resources_are_open_if_they_are_small_or_have_problems() -> None:
    assert "open" in shown(many(2)).attributes("details")[0]
    assert "open" not in shown(many(300)).attributes("details")[0]
    assert "open" in shown(many(300, ill=1)).attributes("details")[0]


def test_devices_handed_out_together_are_listed_after_their_tokens() -> None:
    members = [
        {"device": "0000:5e:00.0", "health": "Unhealthy", "reason": "port 1 is down", "numaNodes": [0, 1]},
        {"device": "0000:3b:00.0", "health": "Healthy", "reason": "", "numaNodes": []},
    ]
    token = made.device("all::0", holder="default/train-0/main")
    token["given"] = ["0000:3b:00.0", "0000:5e:00.0"]
    text = shown(made.document(made.resource("rdma/hca", "rdma", [token], together=members))).text
    assert "default/train-0/main with 0000:3b:00.0, 0000:5e:00.0" in text
    assert "0000:5e:00.0 Unhealthy 0, 1 port 1 is down" in text


def test_held_unlisted_devices_and_observers_have_sections() -> None:
    document = made.document(
        held=[{"resource": "a/b", "id": "d1", "devices": ["d1"], "holder": None, "reason": "it left"}],
        observers=[
            {
                **{"name": "pager", "origin": "pager", "version": "1", "hooks": [], "state": "paused"},
                **{"reason": "it hung", "since": made.ago(minutes=3), "calls": 9, "failures": 1},
                **{"waiting": 2, "dropped": 4},
            }
        ],
    )
    text = shown(document).text
    assert "d1 a/b an unknown pod d1 it left" in text
    assert "pager paused 3m 9 1 2 4 it hung" in text


def test_a_problem_is_announced_when_it_begins_and_ends() -> None:
    document = made.document(problems=[made.problem("device", "example.com/serial usb-1", "it hangs")])
    row = shown(document).attributes("tr", within="tbody")[0]
    assert row["data-announce"] == "example.com/serial usb-1: unhealthy: it hangs"
    assert row["data-ended"] == "example.com/serial usb-1: healthy again"


@pytest.mark.parametrize("reason", ["it hangs", ""])
def test_state_is_shown_as_text_and_colour(reason: str) -> None:
    document = made.document(made.resource("a/b", "toy", [made.device("d1", reason)]))
    assert f"d1 {'Unhealthy' if reason else 'Healthy'}" in shown(document).text


def in_use(container: Holder) -> Reason:
    """The reason of the plan for a device that conflicts with a held one."""
    mine, other = (Device(id=name, attributes={}, claims=frozenset({"pci:x"})) for name in ("d1", "d2"))
    held = Held("a/b", ("d1",), "gpu", mine, True, container)
    found = ClaimIndex([held]).objection(("rdma", "d2"), other, "c/d", True)
    assert found is not None
    return found.reason


def test_hidden_pods_are_nowhere_on_the_page() -> None:
    document = made.busy_node()
    holder = Holder("ml", "train-llama-0", "trainer")
    devices = document["resources"][1]["devices"]
    document["refusals"][0]["reason"] = f"resources[1]: {in_use(holder).text}"
    devices[0]["reason"] = "a pod has it as d1::2, from before"
    document["problems"][0]["reason"] = "a pod holds it through a/b until it ends"
    devices[1]["reason"] = FORGOTTEN
    named = (document["refusals"][0], document["problems"][0], *devices[:2])
    for row in named:
        row["heldBy"] = [{"namespace": "ml", "pod": "train-llama-0", "container": "trainer"}]
    text = shown(document).text
    for row in named:
        assert f"{row['reason']} (ml/train-llama-0/trainer)" in text
    document["held"] = [
        {
            **{"resource": "a/b", "id": "d1", "devices": [], "reason": ""},
            "holder": document["resources"][3]["devices"][0]["holder"],
        }
    ]
    hidden = without_holders(document_of(document))
    text = render(hidden, made.NODE, made.NOW, pods=False).part + str(hidden)
    for name in ("train-llama-0", "trainer", "telco", "upf-0", "notebook-17", "reader"):
        assert name not in text
    assert "resources[1]: pci:x is in use: a pod holds d1 of backend gpu through a/b" in text
    assert "held by a pod, which the kubelet no longer knows" in text
    assert "unknown pod" not in text
    assert "train-llama-0" in str(document)  # what others get is as it was


def test_the_policy_allows_only_the_style_and_script_of_the_page() -> None:
    policy = headers()["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy and "http" not in policy
    for rule in ("script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    page = whole(render(document_of(made.busy_node()), made.NODE, made.NOW)).decode()
    reading = Reading(page)
    assert all("style" not in attributes for _, attributes, _ in reading.elements)
    assert "<noscript>" in page and '<html lang="en">' in page


def test_entries_without_devices_are_listed_and_optional_ones_are_not_on_this_node() -> None:
    """An entry that serves nothing was invisible; no row of an optional one is drawn as a fault."""
    reason = '0 devices; 2 match all but subsystem ("tty", not "TTY")'
    entries = [
        made.entry(0, "example.com/serial", "udev", reason),
        made.entry(1, "example.com/gpu", "gpu", "0 devices; the backend sees no devices", optional=True),
        made.entry(2, "example.com/kvm", "udev", devices=1),
    ]
    document = made.document(entries=entries, problems=[made.problem("entry", "example.com/serial", reason)])
    text = shown(document).text
    assert "1 problem" in text and "No problems" not in text
    assert text.count(reason) == 2  # in the table of problems and in that of entries
    assert "example.com/gpu gpu resources[1] not on this node" in text
    assert "example.com/kvm" not in text
    optional = shown(made.document(entries=entries[1:])).text
    assert "No problems" in optional and "not on this node" in optional


def test_an_entry_with_devices_has_a_row_for_those_that_it_just_misses() -> None:
    pool = made.entry(0, "example.com/pool", "sriov", devices=7)
    missed = pool | {"remark": "1 more matches all but isRdma"}
    text = shown(made.document(entries=[missed])).text
    assert "Entries that lack devices" in text and "No problems" in text
    assert "example.com/pool sriov resources[0] 7 devices 1 more matches all but isRdma" in text
    assert "example.com/pool" not in shown(made.document(entries=[pool])).text


def test_verdicts_have_rows_with_who_gave_them_and_why() -> None:
    verdict = {"file": "a.json", "kind": "cordon", "by": "alice", "reason": "fan", "until": None}
    verdict |= {"since": made.ago(hours=3), "devices": [{"backend": "gpu", "device": "GPU-1"}]}
    text = shown(made.document(verdicts=[verdict])).text
    assert "gpu/GPU-1 cordon alice 3h ago fan" in text and "No problems" in text
    assert "Verdicts" not in shown(made.document()).text


def test_the_worst_resources_come_first_and_healthy_rows_are_quiet() -> None:
    found = [
        made.resource("a.example/free", "toy", [made.device("free")]),
        made.resource("b.example/held", "toy", [made.device("held", holder="a/b/c"), made.device("other")]),
        made.resource(
            "c.example/unhealthy", "toy", [made.device("broken", "it is broken"), made.device("x")]
        ),
        made.resource("d.example/refused", "toy", [made.device("y")], lastError="the kubelet refused it"),
        made.resource("e.example/problem", "toy", [made.device("z")]),
    ]
    problems = [made.problem("device", "e.example/problem z", "it is not what a container was given")]
    rows = shown(made.document(*found, problems=problems)).attributes("tr")
    styles = {row["data-key"]: row.get("class") for row in rows if "data-key" in row}
    resources = [(name, styles[name]) for name in styles if ".example/" in str(name) and " " not in str(name)]
    assert resources == [
        ("d.example/refused", "unhealthy"),
        ("e.example/problem", "unhealthy"),
        ("c.example/unhealthy", "unhealthy"),
        ("b.example/held", None),
        ("a.example/free", "quiet"),
    ]
    assert (styles["broken"], styles["held"], styles["x"]) == ("unhealthy", None, "quiet")


def test_the_verdict_waits_until_every_backend_has_listed_its_devices() -> None:
    """Neither the verdict nor the icon is green before the node's devices are known."""
    waiting = made.entry(0, "example.com/serial", "udev", "0 devices; the backend has not answered yet")
    waits = made.document(entries=[waiting | {"state": "waiting"}])
    assert "Looking for devices" in shown(waits).text
    assert "No problems" not in shown(waits).text
    well, looking = (render(document_of(one), "n1", made.NOW) for one in (made.document(), waits))
    assert looking.icon != well.icon
    (verdict,) = (one for one in shown(waits).attributes("section") if one.get("data-news") == "verdict")
    assert verdict["class"] == "verdict pending"


def test_what_claims_use_of_a_shared_device_is_a_column() -> None:
    document = made.crowded_node()
    dra = document["dra"]
    assert dra is not None
    one: Json = {"device": "d0", "name": "d0", "slice": "s", "health": "Healthy", "replicas": 8}
    dra["pools"] = [{"resource": "a.b/c", "backend": "gpu", "pool": "p", "devices": [one]}]
    assert "Amounts" not in shown(document).text
    one["capacity"] = [{"name": "memory", "total": "8Gi", "used": "5Gi", "free": "3Gi"}]
    text = shown(document).text
    assert "Amounts" in text and "memory 5Gi of 8Gi" in text
