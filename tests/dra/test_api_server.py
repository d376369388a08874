"""The client of the API server with the simulated one: both keep the rules of a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from devhost_testing.dra import ApiServer
from devhost_testing.dra.api_objects import CLASSES, NODES, RESOURCE_API, SLICES, claims
from kit.waiting import until

from devhost.dra.credentials import Access, Credentials
from devhost.dra.kube import ApiError, KubeApi


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[KubeApi]:
    client = KubeApi(Access(lambda _: Credentials(server.url, None)), timeout=60.0)
    yield client
    client.close()


def a_slice(name: str, node: str = "n1", devices: Any = (), **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "d.example.com",
            "nodeName": node,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "devices": [*devices],
            **spec,
        },
    }


def a_claim(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {},
        "status": {"allocation": {}},
    }


async def names(api: KubeApi, path: str, query: dict[str, str], limit: int = 0) -> list[list[str]]:
    return [
        [item["metadata"]["name"] for item in page["items"]]
        async for page in api.list(path, query, limit=limit)
    ]


async def test_an_object_is_created_changed_and_deleted(server: ApiServer, api: KubeApi) -> None:
    made = await api.create(SLICES, a_slice("s"))
    assert made["metadata"]["generation"] == 1
    made["metadata"]["labels"] = {"a": "b"}
    labelled = await api.update(f"{SLICES}/s", made)
    assert labelled["metadata"]["generation"] == 1, "only the metadata has changed"
    labelled["spec"]["devices"] = [{"name": "x"}]
    changed = await api.update(f"{SLICES}/s", labelled)
    assert changed["metadata"]["generation"] == 2
    assert await api.update(f"{SLICES}/s", changed) == changed, "nothing has changed"
    with pytest.raises(ApiError) as caught:
        await api.update(f"{SLICES}/s", made)
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    await api.delete(f"{SLICES}/s", uid=made["metadata"]["uid"])
    with pytest.raises(ApiError) as caught:
        await api.get(f"{SLICES}/s")
    assert caught.value.status == 404
    assert [write.verb for write in server.writes] == ["post", "put", "put", "put", "delete"]


async def test_a_delete_spares_the_object_that_replaced_the_one_it_means(
    server: ApiServer, api: KubeApi
) -> None:
    server.put(SLICES, a_slice("s"))
    with pytest.raises(ApiError) as caught:
        await api.delete(f"{SLICES}/s", uid="another")
    assert caught.value.status == 409
    await api.delete(f"{SLICES}/missing")
    assert len(server.stored(SLICES)) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({**a_slice("s"), "metadata": {"generateName": "s-"}}, 422),
        (a_slice("taken"), 409),
        (a_slice("s", devices=[{"name": "x"}, {"name": "x"}]), 422),
        (a_slice("s", devices=[{"name": f"d{n}", "taints": []} for n in range(65)]), 422),
        (a_slice("s", devices=[{"name": "x", "attributes": {"a": {"string": "y" * 65}}}]), 422),
        (a_slice("s", allNodes=True), 422),
        ({**a_slice("s"), "apiVersion": "resource.k8s.io/v1beta1"}, 400),
    ],
)
async def test_an_invalid_object_is_refused(
    server: ApiServer, api: KubeApi, body: dict[str, Any], status: int
) -> None:
    server.put(SLICES, a_slice("taken"))
    with pytest.raises(ApiError) as caught:
        await api.create(SLICES, body)
    assert caught.value.status == status
    assert len(server.stored(SLICES)) == 1


async def test_a_refused_attribute_is_one_of_slices(server: ApiServer, api: KubeApi) -> None:
    server.refuse_attribute("a")
    claim = {**a_claim("c"), "spec": {"devices": {"requests": [{"name": "r"}]}}}
    assert await api.create(claims("default"), claim)
    with pytest.raises(ApiError):
        await api.create(SLICES, a_slice("s", devices=[{"name": "x", "attributes": {"a": {"int": 1}}}]))


async def test_a_list_selects_objects_and_has_pages(server: ApiServer, api: KubeApi) -> None:
    for index in range(5):
        server.put(SLICES, a_slice(f"s{index}", node="n1" if index else "n2"))
    mine = {"fieldSelector": "spec.nodeName=n1,spec.driver=d.example.com"}
    assert await names(api, SLICES, mine, limit=3) == [["s1", "s2", "s3"], ["s4"]]
    assert await names(api, SLICES, {}) == [["s0", "s1", "s2", "s3", "s4"]]
    with pytest.raises(ApiError) as caught:
        await names(api, SLICES, {"fieldSelector": "spec.pool.name=p"})
    assert caught.value.status == 400


async def test_a_list_whose_beginning_is_forgotten_ends_with_410(server: ApiServer, api: KubeApi) -> None:
    for index in range(3):
        server.put(SLICES, a_slice(f"s{index}"))
    async with aclosing(api.list(SLICES, limit=1)) as pages:
        await anext(pages)
        server.forget_history()
        with pytest.raises(ApiError) as caught:
            await anext(pages)
    assert caught.value.status == 410


async def test_a_list_of_metadata_has_no_devices(server: ApiServer, api: KubeApi) -> None:
    server.put(SLICES, a_slice("s"))
    pages = [page async for page in api.list(SLICES, metadata_only=True)]
    assert [sorted(item) for item in pages[0]["items"]] == [["apiVersion", "kind", "metadata"]]


async def test_a_watch_reports_what_others_do(server: ApiServer, api: KubeApi) -> None:
    page = await anext(api.list(SLICES))
    seen: list[tuple[str, str]] = []
    mine = {"fieldSelector": "spec.nodeName=n1"}
    changes = api.watch(SLICES, mine, page["metadata"]["resourceVersion"], metadata_only=True)
    async with aclosing(changes):
        server.put(SLICES, a_slice("s"))
        server.put(SLICES, a_slice("of-another-node", node="n2"))
        server.put(SLICES, a_slice("s", devices=[{"name": "x"}]))
        server.remove(SLICES)
        async for kind, value in changes:
            assert "spec" not in value
            seen.append((kind, value["metadata"].get("name", "")))
            if kind == "DELETED":
                server.bookmark()
            if kind == "BOOKMARK":
                server.end_watches()
    assert seen == [("ADDED", "s"), ("MODIFIED", "s"), ("DELETED", "s"), ("BOOKMARK", "")]


async def test_a_watch_from_a_forgotten_version_is_refused(server: ApiServer, api: KubeApi) -> None:
    server.forget_history()
    with pytest.raises(ApiError) as caught:
        await anext(api.watch(SLICES, resource_version="100"))
    assert (caught.value.status, caught.value.reason) == (410, "Expired")


async def test_a_watch_that_is_left_closes_its_connection(server: ApiServer, api: KubeApi) -> None:
    server.put(SLICES, a_slice("s"))
    async with aclosing(api.watch(SLICES, resource_version="0")) as changes:
        await anext(changes)
        assert server.watches == 1
    await until(lambda: not server.watches)


async def test_the_status_of_a_claim_is_written_apart_from_the_claim(server: ApiServer, api: KubeApi) -> None:
    path = claims("team")
    server.put(path, a_claim("c"))
    claim = await api.get(f"{path}/c")
    assert claim["metadata"]["namespace"] == "team"
    claim["status"]["devices"] = [{"device": "x"}]
    await api.update(f"{path}/c/status", claim)
    assert (await api.get(f"{path}/c"))["status"]["devices"] == [{"device": "x"}]
    plain = await api.get(f"{path}/c")
    del plain["status"]
    assert (await api.update(f"{path}/c", plain))["status"]["devices"] == [{"device": "x"}]
    assert await names(api, f"{RESOURCE_API}/resourceclaims", {}) == [["c"]]
    assert await names(api, claims("other"), {}) == [[]]


async def test_fields_that_the_server_does_not_know_are_dropped(server: ApiServer, api: KubeApi) -> None:
    server.drop_fields("taints")
    made = await api.create(SLICES, a_slice("s", devices=[{"name": "x", "taints": [{"key": "k"}]}]))
    assert made["spec"]["devices"] == [{"name": "x"}]


async def test_nodes_and_classes_are_served(server: ApiServer, api: KubeApi) -> None:
    server.node("n1", allocatable={"example.com/x": "2"})
    assert (await api.get(f"{NODES}/n1"))["status"]["allocatable"] == {"example.com/x": "2"}
    assert await names(api, CLASSES, {}) == [[]]
    with pytest.raises(ApiError) as caught:
        await api.get("/api/v1/pods")
    assert caught.value.status == 404


async def test_a_lost_answer_of_a_create_leaves_one_object(server: ApiServer, api: KubeApi) -> None:
    await api.create(SLICES, a_slice("first"))  # so the connection is used again
    server.lose_answers()
    with pytest.raises(ApiError) as caught:
        await api.create(SLICES, a_slice("second"))
    assert caught.value.reason == "AlreadyExists", "the create was sent twice"
    assert [value["metadata"]["name"] for value in server.stored(SLICES)] == ["first", "second"]
