"""The command line and configuration of each program of the cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cgroups, image

NODE = "node"
"""The node of the control plane."""

API_PORT = 6443
ETCD = "http://127.0.0.1:2379"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
DRIVER_DIRECTORY = "/var/lib/kubelet/plugins"
PLUGIN_DIRECTORY = "/var/lib/kubelet/device-plugins"
SPECIFICATIONS = "/run/cdi"
"""The directory of CDI specifications, not through ``/var/run``, a link that is wrong outside the node."""

POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"


@dataclass(frozen=True, slots=True)
class Place:
    """What is different for each node; all nodes are in one network."""

    name: str = NODE
    number: int = 1

    @property
    def address(self) -> str:
        return f"10.99.0.{self.number}"

    @property
    def cgroup(self) -> str:
        """The cgroup of its pods."""
        return cgroups.NAME if self.name == NODE else f"{cgroups.NAME}-{self.name}"

    def network(self) -> Mapping[str, Any]:
        """The network of its pods."""
        subnet = {"subnet": f"10.88.{self.number}.0/24"}
        addresses = {
            "type": "host-local",
            "dataDir": "/run/cni",
            "ranges": [[subnet]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        pods = {"type": "ptp", "ipMasq": False, "ipam": addresses}
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [pods]}


KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "failSwapOn": False,
    "localStorageCapacityIsolation": False,
    "makeIPTablesUtilChains": False,
    "nodeStatusUpdateFrequency": "1s",
    "nodeStatusReportFrequency": "1s",
    "oomScoreAdj": 0,
    "resolvConf": "",
    "syncFrequency": "2s",
    "volumePluginDir": "/var/lib/kubelet/volumeplugins",
    "evictionHard": {"memory.available": "50Mi"},
    "imageGCHighThresholdPercent": 100,
}

CONTAINERD = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "{socket}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{image}"

[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  restrict_oom_score_adj = true
  disable_apparmor = true

[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{cni}"]
  conf_dir = "{network}"
"""

CONTROLLERS = (
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "device-taint-eviction-controller",
    "daemonset-controller",
    "replicaset-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "resourceclaim-controller",
    "resourcequota-controller",
)
"""The first takes the taint off a node that is ready; nothing is scheduled before. The last but one deletes
the pods of what is deleted, and without what the last one makes no pod is taken."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Files in ``directory`` and command lines. All programs communicate over loopback only.

    ``token`` belongs to an administrator; others have service accounts.
    """

    programs: Mapping[str, Path]
    directory: Path
    token: str
    place: Place = Place()

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator."""
        return self.directory / "kubeconfig"

    def write_control_plane(self) -> None:
        """Writes the files that only the programs of the control plane read."""
        (self.directory / "tokens.csv").write_text(f"{self.token},admin,1,system:masters\n")
        key = self.directory / "accounts.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True, timeout=120
        )

    def write(self) -> None:
        """Writes the files that every node has."""
        cluster = {"server": f"https://127.0.0.1:{API_PORT}", "insecure-skip-tls-verify": True}
        self._json("kubeconfig", _kubeconfig(cluster, self.token))
        own = {"address": self.place.address, "healthzBindAddress": self.place.address}
        self._json("kubelet.json", {**KUBELET, **own, "cgroupRoot": f"/{self.place.cgroup}"})
        self._json("network/10-pods.conflist", self.place.network())
        (self.directory / "containerd.toml").write_text(
            CONTAINERD.format(
                socket=CONTAINERD_SOCKET,
                image=image.NAME,
                runc=self.programs["runc"],
                cni=self.programs["cni-ptp"].parent,
                network=self.directory / "network",
            )
        )

    @property
    def driver_kubeconfig(self) -> Path:
        """The kubeconfig of a DRA driver, which checks the API server's certificate."""
        return self.directory / "driver-kubeconfig"

    def grant_driver(self, token: str) -> None:
        """Writes the kubeconfig of a DRA driver, with this token."""
        authority = str(self.directory / "certificates/apiserver.crt")
        cluster = {"server": f"https://127.0.0.1:{API_PORT}", "certificate-authority": authority}
        self._json("driver-kubeconfig", _kubeconfig(cluster, token))

    def command(self, name: str) -> list[str]:
        """The command line of a program."""
        return [str(self.programs[name]), *getattr(self, f"_{name.replace('-', '_')}")()]

    def environment(self) -> dict[str, str]:
        """The environment variables that the programs get in addition."""
        return {"PATH": f"{self.programs['containerd'].parent}:{os.environ['PATH']}"}

    def _json(self, name: str, document: Any) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1))

    def _etcd(self) -> list[str]:
        return [
            "--data-dir=/var/lib/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ]

    def _kube_apiserver(self) -> list[str]:
        key = self.directory / "accounts.key"
        return [
            f"--etcd-servers={ETCD}",
            "--bind-address=127.0.0.1",
            f"--advertise-address={self.place.address}",
            f"--secure-port={API_PORT}",
            f"--cert-dir={self.directory / 'certificates'}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",  # it knows no names
        ]

    def _kube_scheduler(self) -> list[str]:
        return [self._kubeconfig(), "--leader-elect=false", "--bind-address=127.0.0.1"]

    def _kube_controller_manager(self) -> list[str]:
        return [
            self._kubeconfig(),
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--controllers={','.join(CONTROLLERS)}",
            f"--service-account-private-key-file={self.directory / 'accounts.key'}",
        ]

    def _containerd(self) -> list[str]:
        return [f"--config={self.directory / 'containerd.toml'}"]

    def _kubelet(self) -> list[str]:
        return [
            f"--config={self.directory / 'kubelet.json'}",
            self._kubeconfig(),
            f"--node-ip={self.place.address}",
            f"--hostname-override={self.place.name}",
            "--v=3",
        ]

    def _kubeconfig(self) -> str:
        return f"--kubeconfig={self.kubeconfig}"


def _kubeconfig(cluster: Mapping[str, Any], token: str) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "one", "user": {"token": token}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "current-context": "one",
    }
