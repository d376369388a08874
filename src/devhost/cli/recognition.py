"""Recognizes the configuration of another device plugin by the words that only that plugin has."""

from __future__ import annotations

import re

_WORDS = {
    "akri": r"akri\.sh/|\bchart:\s*[\"']?akri\b",
    "intel-device-plugins": r"deviceplugin\.intel\.com/|\bintel-(dlb|dsa|fpga|gpu|iaa|npu|qat|sgx)-plugin\b"
    r"|\bintel-device-plugins-|\bintel\.feature\.node\.kubernetes\.io/",
    "kubevirt": r"\b(permittedHostDevices|pciHostDevices|mediatedDevices|mediatedDevicesTypes)\b",
    "sriov-network-device-plugin": r"\b(resourceList|sriovDevicePlugin)\b|/sriov-network-device-plugin\b"
    r"|\bsriovnetwork\.openshift\.io/",
    "rdma-shared-dev-plugin": r"\b(configList|pfNetdevices|rdmaSharedDevicePlugin)\b"
    r"|/k8s-rdma-shared-dev-plugin\b",
    "smarter-device-manager": r"\bdevicematch\b",
    "amd-device-plugin": r"\bamd\.com/v1alpha1\b|\brocm/k8s-device-plugin\b"
    r"|\brocm\.github\.io/|\bchart:\s*[\"']?(amd-gpu|gpu-operator-charts)\b",
    "gke-device-plugin": r"\bGPU(PartitionSize|SharingConfig)\b|\bMaxTimeSharedClientsPerGPU\b"
    r"|\bHealthCriticalXid\b|/(nvidia-gpu-device-plugin|device-plugin-gpu)\b",
    "nvidia-device-plugin": r"\bmigStrategy\b|\btimeSlicing\b|\bdevice(ListStrategy|IDStrategy)\b|\bmps:"
    r"|\bfailOnInitError\b|\bnvidiaDriverRoot\b|/nvidia/k8s-device-plugin\b|\bnvidia\.com/v1\b"
    r"|\bchart:\s*[\"']?(gpu-operator|nvidia-device-plugin)\b|\bmigManager:"
    r"|\bnvidia-device-plugin-(ctr|daemonset)\b",
    "generic-device-plugin": r"/generic-device-plugin\b|(?s:\bgroups[\"']?:.*\bpaths?[\"']?:)",
}
"""By the name of the importer: keys, API groups and images. The most particular ones come first."""

# keys that only a configuration of devhost has; that of the NVIDIA plugin has a mapping in resources
_OWN = re.compile(r"""(?m)(^|[{,]\s*)"?(backends|backendPaths)"?\s*:|^resources:\s*(\[|-\s)""")
_COMMENT = re.compile(r"(?m)(^|\s)#.*$")


def importers_of(data: bytes) -> list[str]:
    """The importers for a file that is not a configuration of devhost; none if no plugin is recognized."""
    text = _COMMENT.sub("", data.decode(errors="replace"))
    if _OWN.search(text):
        return []
    found = [name for name, words in _WORDS.items() if re.search(words, text)]
    # an object of the NVIDIA network operator may carry the settings of both plugins for adapters
    adapters = [name for name in found if name.startswith(("sriov-", "rdma-"))]
    return adapters if found and found[0] in adapters else found[:1]
