"""What the kubelet asks on the registration socket: who the driver is, and where it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from devhost.backend.incident import Incident
from devhost.runtime.log import get
from devhost.runtime.rpc import decoded

from .api import registration_pb2 as pb

log = get(__name__)

SERVICE = "pluginregistration.Registration"

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Served services. A kubelet uses the first one for claims that it knows, so the newest comes first."""


LONGEST_REASON = 1024
"""Most characters of a kubelet's reason that are shown."""


class Registration:
    """Answers at once, also while the rest of devhost is still starting.

    ``endpoint`` is the path of the service socket, as the kubelet sees it. ``changed`` is called when the
    kubelet has reported something: :attr:`registered` is ``None`` before its first report, :attr:`error` why
    it does not use the driver, empty otherwise.
    """

    def __init__(self, driver: str, endpoint: str, changed: Callable[[], None]) -> None:
        self.registered: bool | None = None
        self.error = ""
        self._driver = driver
        self._endpoint = endpoint
        self._changed = changed
        self._refused = Incident()

    def methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The methods of :data:`SERVICE`."""
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetInfo": unary(self._info, None, pb.PluginInfo.SerializeToString),
            "NotifyRegistrationStatus": unary(
                self._notified, None, pb.RegistrationStatusResponse.SerializeToString
            ),
        }

    async def _info(self, data: bytes, context: Any) -> pb.PluginInfo:
        await decoded(pb.InfoRequest, data, context)
        return pb.PluginInfo(
            type="DRAPlugin", name=self._driver, endpoint=self._endpoint, supported_versions=VERSIONS
        )

    async def _notified(self, data: bytes, context: Any) -> pb.RegistrationStatusResponse:
        """Never fails: a kubelet that gets an error drops a registration that it had accepted."""
        status = await decoded(pb.RegistrationStatus, data, context)
        was = self.registered
        self.registered = status.plugin_registered
        if status.plugin_registered:
            self.error = ""
            self._refused.over()
            if not was:
                log.info("DRA driver registered", driver=self._driver)
        else:
            self.error = " ".join(status.error.split())[:LONGEST_REASON] or "the kubelet gave no reason"
            if self._refused.news(self.error):
                log.warning("DRA driver not registered", driver=self._driver, reason=self.error)
        self._changed()
        return pb.RegistrationStatusResponse()
