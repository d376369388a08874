# Generated from podresources.proto with grpcio-tools 1.85.1.
# fmt: off
"""The classes of the services in ``podresources.proto``."""

from devhost.kubelet.api import podresources_pb2
from devhost_testing.api.services import classes

globals().update(classes(podresources_pb2))
