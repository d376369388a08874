"""Any value of ``--listen`` is used or refused in one line."""

from __future__ import annotations

import pytest

from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.runtime.http import HttpServer, Listen, parse_listen


async def _listens(text: str) -> Listen:
    server = HttpServer({})
    try:
        return await server.start(parse_listen(text))
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "::",
        " ",
        " :0",
        ":0 ",
        "\n:0",
        "a b:0",
        "a\tb:0",
        "a\x00:0",
        "\x00",
        "ä:0",
        "日本:0",
        "\u202ea:0",
        "\udce4:0",
        "a\u200db:0",
        ".:0",
        "..:0",
        ".a:0",
        "a..b:0",
        "a..:0",
        "x" * 64 + ":0",
        "a." + "x" * 64 + ".b:0",
        ".".join(["abcdefg"] * 40) + ":0",
        "x" * 100_000 + ":0",
        "http://a:0",
        "a/b:0",
        "user@a:0",
        "*:0",
        "[:0",
        "]:0",
        "[]:0",
        "[[::1]]:0",
        "[::1:0",
        "::1]:0",
        "[::1]0",
        "[::1] :0",
        "[localhost]:0",
        "[::1%]:0",
        "[::1%a b]:0",
        "[::1%lo\x00]:0",
        "[fe80::1%" + "x" * 16 + "]:0",
        "[fe80::1%ä]:0",
        "[127.0.0.1%lo]:0",
        "[:::1]:0",
        "127.0.0.1:99999",
        "127.0.0.1:65536",
        "127.0.0.1:+1",
        "127.0.0.1:1_0",
        "127.0.0.1:0x50",
        "127.0.0.1:٣",
    ],
    ids=ascii,
)
def test_an_invalid_address_is_a_usage_error_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on") as caught:
        parse_listen(text)
    assert "HOST:PORT" in caught.value.hint and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[fe80::1%noethatall]:0", "no network interface noethatall"),
        ("999.999.999.999:0", "cannot be resolved"),
        ("1.2.3.4.5:0", "cannot be resolved"),
        (f"{'x' * 63}.invalid:0", "cannot be resolved"),
        ("[2001:db8::1]:0", ""),
        ("224.0.0.256:0", ""),
    ],
)
async def test_an_address_that_is_not_of_this_machine_is_reported_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot listen on") as caught:
        await _listens(text)
    assert reason in caught.value.message and "--listen" in caught.value.hint


async def test_a_name_that_the_resolver_refuses_is_reported_in_one_line() -> None:
    for host in ("a..b", ".", "x" * 64):
        with pytest.raises(EnvironmentFailure, match="the host name cannot be resolved"):
            await HttpServer({}).start(Listen(host, 0))


@pytest.mark.parametrize("text", ["127.1:0", "[127.0.0.1]:0", "0.0.0.0:00"])
async def test_unusual_notations_of_an_address_of_this_machine_are_accepted(text: str) -> None:
    assert (await _listens(text)).port


def test_a_name_may_have_underscores_and_63_characters_between_dots() -> None:
    name = f"my_node.{'x' * 63}.example"
    assert parse_listen(f"{name}:80") == Listen(name, 80)
