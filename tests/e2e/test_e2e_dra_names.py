"""Claims and classes that are written for another DRA driver, with a real API server and scheduler.

The classes are those of kubernetes-sigs/dra-driver-nvidia-gpu at 95932046,
``deployments/helm/dra-driver-nvidia-gpu/templates/deviceclass-{gpu,mig}.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from onenode.access import RIGHTS, Access
from onenode.claims import DRIVER, Claims, Driver
from onenode.cluster import Cluster
from onenode.pods import Pods

NVIDIA = "gpu.nvidia.com"
CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: {kind}.nvidia.com
spec:
  selectors:
  - cel:
      expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{kind}'"
"""
GPUS = '''
from devhost.backend import Attribute, Backend, Device, Edits, hookimpl


class Gpus(Backend):
    """Models of GPUs and of MIG instances, as the file lists them: kind, id, parent and memory in MiB."""

    name = "gpus"
    attributes = {
        "kind": Attribute(str, "kind", "gpu"),
        "uuid": Attribute(str, "UUID", "GPU-1"),
        "parent": Attribute(str, "id of its GPU", "GPU-1"),
        "profile": Attribute(str, "profile", "1g.10gb"),
        "product": Attribute(str, "model", "NVIDIA A100"),
        "architecture": Attribute(str, "generation", "ampere"),
        "computeCapability": Attribute(str, "capability", "8.0"),
        "driverVersion": Attribute(str, "version", "570.124.06"),
        "cudaVersion": Attribute(str, "version", "12.8"),
        "pciBusID": Attribute(str, "address", "0000:05:00.0"),
        "memory": Attribute(int, "memory", 81920, unit="Mi"),
    }

    def discover(self):
        for line in FILE.read_text().splitlines():
            kind, name, parent, memory = line.split()
            found = {"kind": kind, "uuid": name, "memory": int(memory), "product": "NVIDIA A100-SXM4-80GB"}
            found |= {"architecture": "ampere", "computeCapability": "8.0", "driverVersion": "570.124.06"}
            if kind == "mig":
                found |= {"parent": parent, "profile": "3g.40gb"}
            withheld = "it has MIG instances" if parent == "split" else None
            yield Device(name, found, claims=frozenset({f"fpga:{name}"}), withheld=withheld)

    def allocate(self, request):
        return Edits(env={"GPUS": ",".join(one.id for one in request.devices)})


@hookimpl
def devhost_backends():
    return [Gpus]
'''
ENTRY = {"name": "nvidia.com/gpu", "backend": "gpus", "serve": "dra", "dra": {"profile": "nvidia"}}
MODELS = (
    "gpu GPU-small none 40960",
    "gpu GPU-large none 81920",
    "gpu GPU-a split 81920",
    "gpu GPU-b split 81920",
    "mig MIG-a0 GPU-a 40192",
    "mig MIG-b0 GPU-b 40192",
    "mig MIG-b1 GPU-b 40192",
)


@pytest.fixture
def claims(cluster: Cluster) -> Iterator[Claims]:
    """Creates claims for NVIDIA's driver, with its classes."""
    claims = Claims(cluster, NVIDIA)
    claims.add_class("---".join(CLASS.format(kind=kind) for kind in ("gpu", "mig")))
    yield claims
    claims.clear()


@pytest.fixture
def pods(cluster: Cluster, claims: Claims) -> Iterator[Pods]:
    """Creates pods; they are deleted while the driver still runs."""
    rights = RIGHTS.read_text().replace(DRIVER, NVIDIA)
    with (
        Access(cluster, rights),
        Driver(cluster, ENTRY, cards=MODELS, backend=GPUS, driver=NVIDIA) as driver,
    ):
        driver.registered()
        claims.shows(*(line.split()[1] for line in MODELS if " split " not in line))
        pods = Pods(cluster)
        yield pods
        pods.clear()


@pytest.mark.conformance(122)
def test_a_claim_for_the_driver_of_nvidia_gets_a_gpu_of_devhost(claims, pods):
    enough = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('60Gi')) >= 0"
    model = "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')"
    recent = (
        "device.attributes['gpu.nvidia.com'].cudaComputeCapability.compareTo(semver('8.0.0')) >= 0 && "
        "device.attributes['gpu.nvidia.com'].driverVersion.isGreaterThan(semver('570.0.0'))"
    )
    selectors = [{"cel": {"expression": one}} for one in (enough, model, recent)]
    claims.create("large", {"deviceClassName": "gpu.nvidia.com", "selectors": selectors})
    assert pods.create("user", claims=["large"]).running().shell("echo $GPUS") == "GPU-large"


@pytest.mark.conformance(122)
def test_a_claim_for_two_instances_of_one_gpu_gets_them(claims, pods):
    profile = [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '3g.40gb'"}}]
    one = {"deviceClassName": "mig.nvidia.com", "selectors": profile}
    claims.create("pair", one, one, constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}])
    pod = pods.create("user", claims=["pair"]).running()
    assert {one["device"] for one in claims.allocated("pair")} == {
        device["name"] for name, device in claims.offered().items() if name.startswith("MIG-b")
    }
    assert pod.shell("echo $GPUS").startswith("MIG-b")
