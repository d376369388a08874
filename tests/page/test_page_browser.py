"""The page in a real browser: updates, interaction and accessibility.

``make page`` runs it; ``make page SCREENSHOTS=1`` also takes the pictures of ``docs/images``.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import page_document as made
import picture
import pytest
import webdriver
from kit.waiting import until
from page_eyes import ACCESSIBLE, BROKEN, CONTRAST, NAMELESS, OVERLAP, SPOKEN
from status_values import Json, document_of

from devhost.runtime import http
from devhost.runtime.http import HttpServer, Listen
from devhost.telemetry.page import StatusPage
from devhost.telemetry.tables import age

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WAIT = 60.0
"""Seconds for what should be there at once: a busy machine is no failure."""
SERIAL = "r-example.com/serial"
HEIGHTS = {1280: 2070, 390: 1700}
"""Width and height of the pictures in the documentation: the whole page, and the upper part of it."""
TALLEST = {1280: 4400, 390: 8500}
"""The maximum height of the page of a crowded node, by width."""
SCREEN = 1500
"""The maximum height of a picture of that page in the directory ``$DEVHOST_SCREENSHOTS``."""
FOLDED = ("intel.com/fpga", "intel.com/sriov_dpdk", "rdma/hca")
"""What is folded in these pictures, so that more kinds of content are in them."""

_reason = webdriver.why_not() if os.environ.get("DEVHOST_PAGE") == "1" else "needs a browser (run make page)"
pytestmark = pytest.mark.skipif(bool(_reason), reason=_reason)


class Open:
    """An open page in the browser, and its server."""

    def __init__(self, browser: webdriver.Browser) -> None:
        self.browser = browser
        self.document = made.busy_node()
        self._page = StatusPage(lambda: document_of(self.document), node=made.NODE, interval=0)
        self.address = Listen("127.0.0.1", 0)
        self._server: HttpServer | None = None

    async def start(self) -> None:
        self._server = HttpServer(self._page.routes())
        self.address = await self._server.start(self.address)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    async def load(self, fragment: str = "", *, live: bool = True) -> None:
        await asyncio.to_thread(self.browser.open, f"http://{self.address}/{fragment}")
        if live:
            await self.until("return document.getElementById('mode').textContent === 'live'")

    def change(self, document: Json | None = None) -> None:
        self.document = document or self.document
        self._page.changed()

    async def run(self, script: str, *arguments: object) -> Any:
        return await asyncio.to_thread(self.browser.run, script, *arguments)

    async def until(self, script: str, *arguments: object) -> Any:
        return await until(lambda: self.run(script, *arguments))

    async def says(self, text: str) -> None:
        await self.until("return document.getElementById('page').textContent.includes(arguments[0])", text)

    async def spoken(self) -> list[str]:
        return list(await self.run(SPOKEN))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Browser]:
    with webdriver.Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
async def page(browser: webdriver.Browser) -> AsyncIterator[Open]:
    page = Open(browser)
    await page.start()
    browser.narrow(1280)
    browser.console()
    yield page
    browser.open("about:blank")
    await page.stop()


def with_illness(reason: str) -> Json:
    """The busy node, with an additional unhealthy serial adapter."""
    document = made.busy_node()
    serial = document["resources"][0]
    serial["devices"][1] = made.device("FT7QW0L2", reason, seconds=1)
    serial["allocatable"] = 1
    document["problems"].append(made.problem("device", "example.com/serial FT7QW0L2", reason, seconds=1))
    return document


async def test_a_change_appears_without_reload_and_is_announced(page: Open) -> None:
    await page.load()
    await page.run("window.mine = document.querySelector('h1')")
    assert await page.spoken() == []
    page.change(with_illness("/dev/ttyUSB1 does not answer"))
    await page.says("/dev/ttyUSB1 does not answer")
    assert await page.run("return window.mine === document.querySelector('h1') && window.mine.isConnected")
    assert await page.run("return document.title") == f"(2) {made.NODE} · devhost"
    assert await page.spoken() == [
        "2 problems",
        "example.com/serial FT7QW0L2: unhealthy: /dev/ttyUSB1 does not answer",
        "example.com/serial: registered, 1 of 2 healthy",
    ]
    page.change(made.busy_node())
    await page.until("return document.title.startsWith('(1)')")
    assert "example.com/serial FT7QW0L2: healthy again" in await page.spoken()


async def test_a_change_of_ages_is_not_announced(page: Open) -> None:
    await page.load()
    page.document["devhost"]["pid"] += 1
    page.document["resources"][0]["devices"][0]["since"] = made.ago(days=3)
    page.change()
    await page.says("3d")
    assert await page.spoken() == []


async def test_open_sections_focus_and_scroll_position_are_kept_during_updates(page: Open) -> None:
    await page.load()
    page.browser.click("#r-rdma\\/hca summary")
    await page.run(
        """const summary = document.getElementById('r-nvidia.com/gpu').querySelector('summary');
        summary.focus(); summary.scrollIntoView({block: 'center'}); window.summary = summary;
        window.top_ = summary.getBoundingClientRect().top"""
    )
    for document in (with_illness("a " + "long " * 60 + "reason"), made.document(), made.busy_node()):
        if not document["resources"]:
            document["resources"] = made.busy_node()["resources"][
                1:
            ]  # the first resource goes, and all problems
        page.change(document)
        await page.until(
            "return document.querySelectorAll('details').length === arguments[0]", len(document["resources"])
        )
        await page.until(
            "return document.querySelectorAll('.problems tbody tr').length === arguments[0]",
            len(document["problems"]),
        )
        assert await page.run("return document.activeElement === window.summary")
        assert await page.run("return !document.getElementById('r-rdma/hca').open")
        assert await page.run("return document.getElementById('r-nvidia.com/gpu').open")
    moved = await page.run("return Math.abs(window.summary.getBoundingClientRect().top - window.top_)")
    assert moved <= 2


async def test_focus_stays_in_the_page_when_its_element_is_removed(page: Open) -> None:
    await page.load()
    await page.run("document.querySelector('.problems a').focus()")
    page.change(made.document())
    await page.until("return document.title === arguments[0]", f"{made.NODE} · devhost")
    assert await page.run("return document.activeElement.id") == "main"


async def test_a_lost_connection_is_shown_and_the_page_reconnects(page: Open) -> None:
    await page.load()
    await page.run("window.mine = document.querySelector('h1')")
    await page.stop()
    await page.until("return !document.getElementById('lost').hidden")
    assert "Connection lost since" in await page.run("return document.getElementById('lost').textContent")
    assert (await page.spoken())[0].startswith("connection lost since")
    assert await page.run("return document.getElementById('mode').hidden")
    page.document = made.document()
    await page.start()
    await page.until("return document.getElementById('mode').textContent === 'live'")
    assert await page.run("return document.getElementById('lost').hidden && window.mine.isConnected")
    await page.says("No problems")
    assert "connected again" in await page.spoken()


async def test_a_page_without_a_stream_polls_until_one_is_free(page: Open) -> None:
    streams = []
    for _ in range(http.Limits().streams):
        reader, writer = await asyncio.open_connection(page.address.host, page.address.port)
        writer.write(b"GET /events HTTP/1.0\r\n\r\n")
        await reader.readline()
        streams.append(writer)
    await page.load(live=False)
    await page.until("return document.getElementById('mode').textContent === 'every 5 s'")
    page.change(with_illness("it hangs"))
    await page.says("it hangs")
    assert await page.run("return document.getElementById('lost').hidden")
    for writer in streams:
        writer.transport.abort()
    await page.until("return document.getElementById('mode').textContent === 'live'")


@pytest.mark.parametrize("seconds", [5, 90, 150, 5400, 7300, 47 * 3600, 49 * 3600, 30 * 86400])
async def test_ages_are_updated_between_two_events(page: Open, seconds: int) -> None:
    await page.load()
    times = "[...document.querySelectorAll('time')]"
    await page.run(f"for (const one of {times}) one.textContent = ''")
    then = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    await page.run(f"{times}[0].dateTime = arguments[0]", then)
    await page.until(f"return {times}.every(one => one.textContent)")
    told = await page.run(f"return {times}[0].textContent")
    now = datetime.now(UTC)
    assert told in {age(then, now - timedelta(seconds=past)) for past in range(-1, 60)}


async def test_a_hostile_device_cannot_run_scripts(page: Open) -> None:
    evil = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
    page.document = made.document(made.resource("example.com/toy", "toy", [made.device(evil, evil)]))
    await page.load()
    page.change(made.document(made.resource("example.com/toy", "toy", [made.device(f"{evil}2", evil)])))
    await page.says(f"{evil}2")
    assert await page.run("return window.hacked === undefined && document.images.length === 0")
    assert page.browser.console() == []


async def test_the_console_stays_empty_and_no_cookie_is_kept(page: Open) -> None:
    await page.load()
    page.change(with_illness("it hangs"))
    await page.says("it hangs")
    assert page.browser.console() == []
    assert await page.run("return document.cookie + localStorage.length + sessionStorage.length") == "00"


async def test_without_javascript_the_page_is_complete_and_asks_for_a_reload(page: Open) -> None:
    page.browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        await page.load(live=False)
    finally:
        page.browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
    text = await page.run("return document.body.innerText")
    assert "reload it" in text and made.LOST in text
    assert "Connection lost" not in text
    assert "Search" not in text, "it would do nothing"


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1280])
async def test_the_page_never_scrolls_horizontally(page: Open, width: int) -> None:
    long = "example.com/" + "a-very-long-resource-name-with-sixty-three-characters-" + "b" * 9
    reason = "pci:" + "0123456789abcdef" * 16
    found = [made.device(f"GPU-{n}-" + "f" * 40, reason, "ns/" + "p" * 200 + "/c") for n in range(3)]
    page.document = made.busy_node()
    page.document["resources"].append(made.resource(long, "b" * 63, found, lastError=reason))
    page.document["backends"][0]["reason"] = page.document["refusals"][0]["reason"] = reason
    page.document["problems"].append(made.problem("device", f"{long} GPU-0-" + "f" * 40, reason))
    page.document["devhost"]["config"] = "/etc/" + "c" * 120
    page.browser.narrow(width)
    await page.load()
    assert await page.run("return document.documentElement.scrollWidth <= innerWidth")
    hidden = (
        "return [...document.querySelectorAll('td, th')].filter(one => one.scrollWidth > one.clientWidth + 1)"
    )
    assert await page.run(f"{hidden}.filter(one => one.clientWidth > 1).map(one => one.textContent)") == []


async def test_on_a_phone_captions_are_aligned_with_the_text_of_their_cards(page: Open) -> None:
    page.document["backends"][0]["refusedDevices"] = [{"device": "", "reason": "its id is empty"}]
    page.browser.narrow(390)
    await page.load()
    begin = (
        "const left = (of) => { const range = document.createRange(); range.selectNodeContents(of); "
        "return Math.round(range.getBoundingClientRect().left); }; "
        "return [...document.querySelectorAll('caption:not(.unseen)')].map((one) => "
        "[one.textContent, left(one) - left(one.parentElement.querySelector('tbody th'))])"
    )
    found = dict(await page.run(begin))
    assert len(found) == 3 and set(found.values()) == {0}


@pytest.mark.parametrize("width", [390, 1280])
async def test_every_element_has_a_role_and_a_name_for_screen_readers(page: Open, width: int) -> None:
    page.browser.narrow(width)
    await page.load()
    nodes = page.browser.devtools("Accessibility.getFullAXTree")["nodes"]
    found = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]
    roles = [role for role, _ in found]
    for role, count in (("banner", 1), ("main", 1), ("contentinfo", 1), ("navigation", 1), ("log", 1)):
        assert roles.count(role) == count
    assert [name for role, name in found if role in NAMELESS and not name] == []
    tables = [name for role, name in found if role == "table"]
    assert len(tables) == 10 and len(set(tables)) == 10
    assert {"rowheader", "columnheader", "cell"} <= set(roles)
    assert "log" in roles and await page.run(ACCESSIBLE) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_the_contrast_of_wcag_aa(page: Open, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.browser.devtools("Emulation.setEmulatedMedia", features=features)
    page.document["resources"][1]["state"] = "waiting"
    page.document["kubelet"]["socket"] = "absent"
    page.document["devhost"]["lastReload"]["result"] = "rejected"
    try:
        await page.load()
        await page.run(
            "document.getElementById('lost').hidden = false; "
            "document.getElementById('lost').textContent = 'lost'"
        )
        assert await page.run(CONTRAST) == []
    finally:
        page.browser.devtools("Emulation.setEmulatedMedia", features=[])


async def test_the_page_can_be_used_with_the_keyboard_only(page: Open) -> None:
    await page.load()
    page.browser.press("\ue004")
    assert await page.run("return document.activeElement.className") == "skip"
    assert await page.run("return document.activeElement.getBoundingClientRect().left >= 0")
    page.browser.press("\ue007")
    assert await page.run("return document.activeElement.id") == "main"
    page.browser.press("\ue004")
    assert await page.run("return document.activeElement.id") == "search"
    page.browser.press("\ue004")
    assert await page.run("return document.activeElement.matches('a:focus-visible')")
    assert await page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await page.run("document.getElementById(arguments[0]).querySelector('summary').focus()", SERIAL)
    page.browser.press(" ")
    await page.until("return !document.getElementById(arguments[0]).open", SERIAL)


async def test_a_link_to_a_closed_resource_opens_it(page: Open) -> None:
    await page.load()
    await page.run("document.getElementById(arguments[0]).open = false", SERIAL)
    page.browser.click("a[href='#r-example.com/serial']")
    await page.until("return document.getElementById(arguments[0]).open", SERIAL)


@pytest.mark.parametrize("fragment", ["#%", "#%zz", "#%ff", "#%E2%82", "#r-rdma%2", "#'\"<", "#nothing", "#"])
async def test_the_page_updates_with_any_path_in_its_address(page: Open, fragment: str) -> None:
    await page.load(fragment)
    page.change(with_illness("/dev/ttyUSB1 does not answer"))
    await page.says("/dev/ttyUSB1 does not answer")
    await page.run("document.getElementById(arguments[0]).open = false", SERIAL)
    await page.run("location.hash = '#%'")
    await page.run("location.hash = arguments[0]", f"#{SERIAL.replace('/', '%2F')}")
    await page.until("return document.getElementById(arguments[0]).open", SERIAL)
    assert page.browser.console() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "tallest"), [(1280, TALLEST[1280]), (390, TALLEST[390])])
async def test_a_crowded_node_fits_a_few_screens(page: Open, width: int, tallest: int, scheme: str) -> None:
    """30 resources, 400 devices and 39 that change sides."""
    page.document = made.crowded_node()
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.browser.devtools("Emulation.setEmulatedMedia", features=features)
    page.browser.narrow(width)
    try:
        await page.load()
        height = await page.run("return document.documentElement.scrollHeight")
        if folder := os.environ.get("DEVHOST_SCREENSHOTS", "").removeprefix("1"):
            for n, y in enumerate(range(0, height, SCREEN)):
                clip = {"x": 0, "y": y, "width": width, "height": min(SCREEN, height - y), "scale": 1}
                taken = page.browser.devtools(
                    "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
                )
                part = Path(folder, f"crowded-{width}-{scheme}-{n}.png")
                part.write_bytes(base64.b64decode(taken["data"]))
        assert await page.run(CONTRAST) == []
        assert await page.run(BROKEN) == []
        assert await page.run(OVERLAP) == []
        assert height <= tallest
    finally:
        page.browser.devtools("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize("width", [320, 390, 600, 768, 1023, 1024, 1100, 1280, 1920])
async def test_no_word_is_broken_at_any_width(page: Open, width: int) -> None:
    page.browser.narrow(width)
    for document in (made.busy_node(), made.crowded_node()):
        page.document = document
        await page.load()
        await page.run("for (const one of document.querySelectorAll('details')) one.open = true")
        assert await page.run(BROKEN) == []
        assert await page.run(OVERLAP) == []
        assert await page.run("return document.documentElement.scrollWidth <= innerWidth")


async def test_the_search_field_shows_only_matching_rows_and_their_number(page: Open) -> None:
    await page.load()
    rows = "[...document.querySelectorAll('main tbody tr')].filter((one) => one.checkVisibility())"
    every = await page.run("return document.querySelectorAll('main tbody tr').length")
    page.browser.press("/")
    assert await page.run("return document.activeElement.id") == "search"
    page.browser.press("train-llama rdma")
    found = f"return document.getElementById('found').textContent === '2 of {every} rows'"
    await page.until(found)
    assert await page.run(f"return {rows}.map((one) => one.dataset.key)") == [
        "0000:3b:00.0::0",
        "0000:3b:00.0::1",
    ]
    page.document["devhost"]["generation"] = 77
    page.change()
    await page.says("77")
    assert await page.run(found), "an update keeps what is searched for"
    page.browser.press("\ue00c")
    await page.until("return document.getElementById('found').textContent === ''")
    assert await page.run("return document.querySelectorAll('main [hidden]').length") == 0
    assert page.browser.console() == []


async def test_the_search_opens_the_parts_of_resources_that_have_a_match_and_folds_them_again(
    page: Open,
) -> None:
    page.document = made.crowded_node()
    await page.load()
    opened = "[...document.querySelectorAll('details')].filter((one) => one.open).length"
    before = await page.run(f"return {opened}")
    page.browser.press("/GPU-1a2b3c4d-1C0DE::7")
    await page.until("return document.getElementById('found').textContent.startsWith('1 of ')")
    assert await page.run(f"return {opened}") == 1
    page.browser.press("\ue00c")
    await page.until(f"return {opened} === arguments[0]", before)


async def test_a_link_to_a_resource_that_the_search_leaves_out_ends_the_search(page: Open) -> None:
    await page.load()
    page.browser.press("/nothing has this")
    await page.until("return document.getElementById('found').textContent.startsWith('0 of ')")
    await page.run("location.hash = arguments[0]", f"#{SERIAL}")
    await page.until("return document.getElementById(arguments[0]).checkVisibility()", SERIAL)


@pytest.mark.parametrize("width", [390, 1280])
async def test_the_pictures_of_the_documentation_are_of_this_page(page: Open, width: int) -> None:
    page.browser.narrow(width, HEIGHTS[width])
    await page.load()
    for name in FOLDED:
        await page.run("document.getElementById(arguments[0]).open = false", f"r-{name}")
    taken = page.browser.devtools("Page.captureScreenshot", format="png")
    png = base64.b64decode(taken["data"])
    assert picture.size(png) == (width, HEIGHTS[width])
    kept = IMAGES / f"status-{width}.png"
    if os.environ.get("DEVHOST_SCREENSHOTS") == "1":
        IMAGES.mkdir(exist_ok=True)
        kept.write_bytes(picture.smaller(png))
    assert picture.size(kept.read_bytes()) == picture.size(png)
    assert kept.stat().st_size < 200_000
