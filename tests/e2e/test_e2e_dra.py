"""Claims for devices of devhost, with a real API server, scheduler, kubelet and container runtime."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml
from onenode.access import RIGHTS
from onenode.api import ApiError
from onenode.claims import CARD, DRIVER
from onenode.machine import device_file
from onenode.offers import FUSE, ZRAM
from onenode.release import NAME
from onenode.settings import SPECIFICATIONS
from onenode.waiting import until

CLASS = {"deviceClassName": "card.example.com"}
CARDS = {"name": CARD, "backend": "cards", "serve": "dra"}
DISKS = {"name": ZRAM, "where": {"subsystem": "block", "sysName": "zram[1-9]*"}, "serve": "dra"}


def by(expression: str, name: str = "card.example.com") -> dict[str, Any]:
    """A request for one device of a class that a CEL expression selects."""
    return {"deviceClassName": name, "selectors": [{"cel": {"expression": expression}}]}


def attribute(name: str, value: str) -> str:
    return f'device.attributes["{DRIVER}"].{name} == "{value}"'


def test_a_claim_gets_the_device_that_its_expression_selects(cluster, driver, claims, pods, zram):
    one, other = (zram.plug() for _ in range(2))
    driver.serve(DISKS)
    driver.registered()
    claims.classes(driver)
    until("both disks are published", lambda: len(claims.offered()) >= 2, seen=claims.offered)
    claims.create("mine", by(attribute("sysName", f"zram{other}"), "zram.example.com"))
    without = pods.create("without").running()
    pod = pods.create("user", claims=["mine"]).running()
    assert pod.nodes() - without.nodes() == {f"/dev/zram{other}"}
    host = device_file(f"/dev/zram{other}")
    assert pod.shell(f"stat -c '%t:%T' /dev/zram{other}") == f"{host.major:x}:{host.minor:x}"
    assert pod.opens(f"/dev/zram{other}")
    assert f"/dev/zram{one}" not in pod.nodes()


@pytest.mark.conformance(95)
def test_two_pods_share_a_claim_and_its_device_is_free_when_both_are_gone(driver, claims, pods):
    driver.cards("c0 a")
    driver.serve(CARDS)
    driver.registered()
    claims.classes(driver)
    claims.create("both", CLASS)
    claims.create("next", CLASS)
    first, second = (pods.create(name, claims=["both"]).running() for name in ("first", "second"))
    assert first.shell("echo $CARDS") == second.shell("echo $CARDS") == "c0"
    late = pods.create("late", claims=["next"])
    late.waits_for_claims()
    first.delete()
    assert second.shell("echo $CARDS") == "c0"
    assert not claims.allocated("next")
    second.delete()
    assert late.running().shell("echo $CARDS") == "c0"


def test_two_containers_of_a_pod_use_one_claim(driver, claims, pods):
    driver.cards("c0 a")
    driver.serve(CARDS)
    driver.registered()
    claims.classes(driver)
    claims.create("both", CLASS)
    pod = pods.create("two", beside={}, claims=["both"]).running()
    assert pod.shell("echo $CARDS") == pod.beside.running().shell("echo $CARDS") == "c0"


def test_an_old_pod_gets_a_device_by_the_extended_name(cluster, driver, claims, pods):
    driver.cards("c0 a")
    driver.serve({**CARDS, "dra": {"extendedName": True}})
    driver.registered()
    claims.classes(driver)
    pod = pods.create("old", {CARD: 1}).running()
    assert pod.shell("echo $CARDS") == "c0"
    late = pods.create("late", {CARD: 1})
    late.waits_for_claims()
    pod.delete()
    assert late.running().shell("echo $CARDS") == "c0"


def test_as_many_claims_share_a_device_as_it_has_replicas(driver, claims, pods):
    driver.serve({"name": FUSE, "where": {"devNode": "/dev/fuse"}, "share": {"replicas": 2}, "serve": "dra"})
    driver.registered()
    claims.classes(driver)
    shared = {"deviceClassName": "fuse.example.com"}
    for name in ("one", "two", "three"):
        claims.create(name, shared)
    first, second = (pods.create(name, claims=[name]).running() for name in ("one", "two"))
    assert first.opens("/dev/fuse") and second.opens("/dev/fuse")
    late = pods.create("three", claims=["three"])
    late.waits_for_claims()
    first.delete()
    claims.delete("one")
    assert late.running().opens("/dev/fuse")


@pytest.mark.conformance(125)
def test_claims_by_amount_fill_a_device_to_the_last_step_and_no_further(driver, claims, pods):
    limit = {"env": {"MEMORY": "{consumed.memory}", "CORES": "{consumed.cores}"}}
    capacity = {
        "memory": {"total": "8Gi", "min": "1Gi", "step": "1Gi", "default": "2Gi", "unit": "Gi"},
        "cores": {"total": 100, "min": 10, "step": 5},
    }
    share = {"capacity": capacity, "limit": limit}
    driver.serve({"name": FUSE, "where": {"devNode": "/dev/fuse"}, "share": share, "serve": "dra"})
    driver.registered()
    claims.classes(driver)
    until("the device is published", lambda: len(claims.offered()) == 1, seen=driver.status)

    def claim(name: str, **requests: str) -> None:
        wanted = {"capacity": {"requests": requests}} if requests else {}
        claims.create(name, {"deviceClassName": "fuse.example.com", **wanted})

    claim("usual")
    claim("odd", memory="2500Mi", cores="12")
    claim("last", memory="3Gi")
    claim("late", memory="1Gi")
    users = {name: pods.create(name, claims=[name]).running() for name in ("usual", "odd", "last")}
    seen = {name: pod.shell("echo $MEMORY $CORES") for name, pod in users.items()}
    assert seen == {"usual": "2 10", "odd": "3 15", "last": "3 10"}
    assert all(pod.opens("/dev/fuse") for pod in users.values())
    assert len({one["shareID"] for name in users for one in claims.allocated(name)}) == 3
    late = pods.create("late", claims=["late"])
    late.waits_for_claims()
    users["odd"].delete()
    claims.delete("odd")
    assert late.running().shell("echo $MEMORY $CORES") == "1 10"


def test_devices_of_two_backends_are_aligned_by_an_attribute(driver, claims, pods, zram):
    near = [zram.plug() for _ in range(2)][1]
    driver.cards("far zram77", f"near zram{near}")
    driver.serve(CARDS, DISKS)
    driver.registered()
    claims.classes(driver)
    disk = {"deviceClassName": "zram.example.com"}
    claims.create("pair", CLASS, disk, constraints=[{"matchAttribute": f"{DRIVER}/sysName"}])
    pod = pods.create("aligned", claims=["pair"]).running()
    assert pod.shell("echo $CARDS") == "near"
    assert pod.opens(f"/dev/zram{near}")


def test_an_unhealthy_device_is_only_for_claims_that_tolerate_it(driver, claims, pods):
    driver.cards("c0 a ill")
    driver.serve(CARDS)
    driver.registered()
    claims.classes(driver)
    claims.shows("c0")
    assert claims.offered()["c0"]["taints"][0]["key"] == f"{DRIVER}/unhealthy"
    claims.create("careful", CLASS)
    claims.create("brave", {**CLASS, "tolerations": [{"operator": "Exists"}]})
    late = pods.create("careful", claims=["careful"])
    late.waits_for_claims()
    pod = pods.create("brave", claims=["brave"]).running()
    assert pod.shell("echo $CARDS") == "c0"
    pod.delete()
    claims.delete("brave")
    driver.cards("c0 a")
    assert late.running().shell("echo $CARDS") == "c0"


@pytest.mark.conformance(65)
def test_a_restarted_kubelet_keeps_pods_and_the_slices_come_back(cluster, driver, claims, pods):
    driver.cards("c0 a", "c1 b")
    driver.serve(CARDS)
    driver.registered()
    claims.classes(driver)
    claims.create("before", by(attribute("sysName", "a")))
    pod = pods.create("before", claims=["before"]).running()
    started = pod.identity()
    for kill in (False, True):
        cluster.restart_kubelet(kill=kill)
        claims.shows("c0", "c1")
    assert pod.running().identity() == started
    claims.create("after", CLASS)
    assert pods.create("after", claims=["after"]).running().shell("echo $CARDS") == "c1"
    assert pod.restarted().shell("echo $CARDS") == "c0", "its CDI file is still there"


@pytest.mark.conformance(68)
def test_a_restarted_devhost_keeps_claims_and_writes_no_slice(driver, claims, pods):
    driver.cards("c0 a", "c1 b")
    driver.serve(CARDS)
    driver.registered()
    claims.classes(driver)
    claims.create("before", by(attribute("sysName", "a")))
    pod = pods.create("before", claims=["before"]).running()
    before = [one["metadata"]["resourceVersion"] for one in claims.slices()]
    for kill in (False, True):
        driver.restart(kill=kill)
        driver.registered()
    assert [one["metadata"]["resourceVersion"] for one in claims.slices()] == before
    assert driver.status()["dra"]["writes"] == 0
    claims.create("after", CLASS)
    assert pods.create("after", claims=["after"]).running().shell("echo $CARDS") == "c1"
    pod.delete()
    claims.delete("before")
    until(
        "the claim is released",
        lambda: [one["name"] for one in driver.status()["dra"]["claims"]] == ["after"],
        seen=driver.status,
    )


def test_the_file_of_a_claim_that_was_removed_is_made_again(cluster, driver, claims, pods):
    """Another program empties the CDI directory; a container that restarts needs the file."""
    driver.cards("c0 a")
    driver.serve(CARDS)
    driver.registered()
    claims.classes(driver)
    claims.create("mine", CLASS)
    pod = pods.create("user", claims=["mine"]).running()

    def files() -> list[Any]:
        return [*cluster.namespaces.path(SPECIFICATIONS).glob("*-dra_*.json")]

    (file,) = files()
    file.unlink()
    until("the file is there again", files)
    assert pod.restarted().shell("echo $CARDS") == "c0"


@pytest.mark.conformance(93)
def test_claims_survive_an_emptied_directory_while_nothing_runs(cluster, driver, claims, pods):
    """As after a reboot: the directory is in memory, and kubelet and devhost start at the same time."""
    driver.cards("c0 a", "c1 b")
    driver.serve(CARDS)
    driver.registered()
    claims.classes(driver)
    claims.create("mine", CLASS)
    pod = pods.create("user", claims=["mine"]).running()
    card = pod.shell("echo $CARDS")

    def gone() -> None:
        driver.stop(kill=True)
        for file in cluster.namespaces.path(SPECIFICATIONS).glob("*"):
            file.unlink()
        driver.start()

    cluster.restart_kubelet(kill=True, meanwhile=gone)
    driver.registered()
    claims.create("other", CLASS)
    other = pods.create("other", claims=["other"]).running().shell("echo $CARDS")
    assert {card, other} == {"c0", "c1"}
    until("the claim is known again", lambda: len(driver.status()["dra"]["claims"]) == 2, seen=driver.status)
    assert pod.restarted().shell("echo $CARDS") == card


def test_a_quota_limits_the_devices_of_a_class(cluster, driver, claims, pods):
    driver.cards("c0 a", "c1 b")
    driver.serve(CARDS)
    driver.registered()
    claims.classes(driver)
    path = "/api/v1/namespaces/default/resourcequotas"
    name = "card.example.com.deviceclass.resource.k8s.io/devices"
    document = {"metadata": {"name": "cards"}, "spec": {"hard": {name: "1"}}}
    cluster.api.post(path, {"apiVersion": "v1", "kind": "ResourceQuota", **document})
    try:
        until("the quota is known", lambda: cluster.api.get(f"{path}/cards").get("status", {}).get("hard"))
        claims.create("one", CLASS)
        with pytest.raises(ApiError, match="exceeded quota"):
            claims.create("two", CLASS)
        assert pods.create("one", claims=["one"]).running().can('test -n "$CARDS"')
    finally:
        cluster.api.delete(f"{path}/cards")


def test_what_the_api_server_refuses_is_named_and_heals_without_a_restart(cluster, driver, claims):
    """Certificate authority, token and kubeconfig are replaced as operators do, while devhost runs."""
    file = cluster.driver_kubeconfig
    good = file.read_text()
    other = file.with_name("other.pem")
    key = other.with_suffix(".key")
    make = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other", "-days", "1")
    subprocess.run([*make, "-keyout", key, "-out", other], check=True, capture_output=True, timeout=120)
    broken = json.loads(good)
    token = broken["users"][0]["user"]["token"]
    authority = broken["clusters"][0]["cluster"]["certificate-authority"]

    def error() -> str:
        return str((driver.status().get("dra") or {"error": ""})["error"])

    def problems() -> list[str]:
        return [one["reason"] for one in driver.status()["problems"] if one["kind"] == "dra"]

    driver.cards("c0 zram1")
    file.unlink()
    driver.serve(CARDS)
    until("the missing file is named", lambda: "no access to the API server" in error(), seen=error)
    for old, new, text in (
        (token, "wrong", "does not accept devhost's credentials (HTTP 401)"),
        (authority, str(other), "its certificate is not accepted"),
    ):
        file.write_text(good.replace(old, new))
        until(f"{text} is named", lambda text=text: text in error(), seen=error)
        until(
            f"{text} is a problem",
            lambda text=text: any(text in reason for reason in problems()),
            seen=problems,
        )
    file.write_text(good)
    until("the cards are published", lambda: claims.offered().keys() == {"c0"}, seen=error)
    driver.registered()
    until("nothing is wrong", lambda: error() == "" and not problems(), seen=driver.status)


def test_missing_rights_are_named(cluster, driver, claims):
    rights = yaml.safe_load_all(RIGHTS.read_text())
    (binding,) = (one for one in rights if one and one["kind"] == "ClusterRoleBinding")
    cluster.kubectl.delete(yaml.safe_dump(binding))
    account = f"system:serviceaccount:{NAME}:{NAME}"
    question = ("auth", "can-i", "list", "resourceslices.resource.k8s.io", f"--as={account}")
    until("the API server has noticed that", lambda: cluster.kubectl.try_(*question).returncode)
    driver.cards("c0 zram1")
    driver.serve(CARDS)

    def error() -> str:
        return str((driver.status().get("dra") or {"error": ""})["error"])

    until("the right is named", lambda: "permission denied to list resourceslices" in error(), seen=error)
    cluster.kubectl.apply(yaml.safe_dump(binding))
    claims.shows("c0")


def test_a_claim_whose_record_was_lost_while_devhost_was_down_is_not_given_away(
    cluster, driver, claims, pods
):
    """The device stays with its pod: the record comes back from what the kubelet lists."""
    driver.cards("c0 a")
    driver.serve(CARDS)
    driver.registered()
    claims.classes(driver)
    claims.create("mine", CLASS)
    pod = pods.create("user", claims=["mine"]).running()
    driver.stop(kill=True)
    (record,) = cluster.namespaces.path(SPECIFICATIONS).glob("devhost-dra_*.json")
    record.unlink()
    driver.start()
    driver.registered()
    until("the record is there again", record.exists)

    def held() -> list[str]:
        return [one["name"] for one in driver.status()["dra"]["claims"]]

    until("the claim is known again", lambda: held() == ["mine"], seen=held)
    assert pod.restarted().shell("echo $CARDS") == "c0"


def test_a_feature_that_is_switched_on_at_the_api_server_is_used_without_a_restart(
    cluster, driver, claims, pods
):
    """As in an upgrade in place; the version stays the same."""

    def dropped() -> list[str]:
        return list((driver.status().get("dra") or {"droppedFields": ()})["droppedFields"])

    cluster.restart_api_server("--feature-gates=DRAConsumableCapacity=false")
    try:
        driver.serve(
            {"name": FUSE, "where": {"devNode": "/dev/fuse"}, "share": {"replicas": 2}, "serve": "dra"}
        )
        until("the missing feature is named", lambda: "allowMultipleAllocations" in dropped(), seen=dropped)
        assert not claims.offered()
    finally:
        cluster.restart_api_server()
    until("the shares are offered", lambda: len(claims.offered()) == 1, seen=driver.status)
    assert not dropped()
    claims.classes(driver)
    for name in ("one", "two"):
        claims.create(name, {"deviceClassName": "fuse.example.com"})
        assert pods.create(name, claims=[name]).running().opens("/dev/fuse")


@pytest.mark.conformance(119)
def test_a_pod_reads_which_devices_its_claim_has(driver, claims, pods):
    driver.cards("c0 zram7")
    driver.serve(CARDS, metadata=True)
    driver.registered()
    claims.classes(driver)
    claims.create("mine", CLASS)
    pod = pods.create("user", claims=["mine"]).running()
    path = f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/mine/r0/{DRIVER}-metadata.json"
    newest, older = map(json.loads, pod.shell(f"cat {path}").splitlines())
    assert [one.pop("apiVersion").rpartition("/")[2] for one in (newest, older)] == ["v1beta1", "v1alpha1"]
    assert newest == older and newest["metadata"]["name"] == "mine"
    (request,) = newest["requests"]
    ((device,), (result,)) = request["devices"], claims.allocated("mine")
    assert request["name"] == result["request"] == "r0"
    names = [(device["driver"], device["pool"], device["name"])]
    assert names == [(result["driver"], result["pool"], result["device"])]
    assert device["attributes"] == claims.offered()["c0"]["attributes"]
    assert "Read-only" in pod.shell(f"(echo > {path}) 2>&1 || true")


@pytest.mark.conformance(121)
def test_a_pod_is_evicted_from_a_device_with_a_failure_that_the_entry_names(driver, claims, pods):
    driver.cards("c0 a", "c1 b")
    driver.serve({**CARDS, "dra": {"taints": {"unhealthy": "NoExecute"}}})
    driver.registered()
    claims.classes(driver)
    claims.create("careful", CLASS)
    claims.create("brave", {**CLASS, "tolerations": [{"operator": "Exists", "effect": "NoExecute"}]})
    careful = pods.create("careful", claims=["careful"]).running()
    brave = pods.create("brave", claims=["brave"]).running()
    driver.cards("c0 a ill", "c1 b ill")
    careful.ends()
    assert brave.shell("echo $CARDS") in ("c0", "c1")
