"""What kubelets speak: the device plugin API v1beta1, podresources v1, and the constants of both.

``api_pb2`` and ``podresources_pb2`` with their stubs are generated from ``api.proto`` and
``podresources.proto`` by ``tools/generate_protocol.py``. The constants are those of the kubelet's own
``pkg/apis/deviceplugin/v1beta1/constants.go`` and ``pkg/kubelet/apis/podresources``.
"""

from __future__ import annotations

VERSION = "v1beta1"
"""The only API version a kubelet accepts in ``RegisterRequest.version``."""

HEALTHY = "Healthy"
"""The one value of ``Device.health`` that counts as healthy; the comparison is exact."""

UNHEALTHY = "Unhealthy"
"""What a plugin writes into ``Device.health`` otherwise; any other text counts as this."""

PLUGIN_DIRECTORY = "/var/lib/kubelet/device-plugins"
"""Where kubelets look for plugin sockets; compiled in, it does not follow ``--root-dir``."""

KUBELET_SOCKET = "kubelet.sock"
"""Name of the kubelet's registration socket in the plugin directory."""

CHECKPOINT = "kubelet_internal_checkpoint"
"""Name of the file in the plugin directory that belongs to the kubelet alone."""

PRE_START_DEADLINE = 30.0
"""Seconds the kubelet gives PreStartContainer."""

RECEIVE_LIMIT = 4 * 1024 * 1024
"""Bytes of the largest message a kubelet takes; a larger device list ends the stream."""

POD_RESOURCES_DIRECTORY = "pod-resources"
"""Name of the directory in the kubelet's root directory where podresources is served, on ``kubelet.sock``."""

POD_RESOURCES_RECEIVE_LIMIT = 16 * 1024 * 1024
"""Bytes of the largest podresources answer that the kubelet's own client takes."""
