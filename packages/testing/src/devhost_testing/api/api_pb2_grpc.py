# Generated from api.proto with grpcio-tools 1.85.1.
# fmt: off
"""The classes of the services in ``api.proto``."""

from devhost.kubelet.api import api_pb2
from devhost_testing.api.services import classes

globals().update(classes(api_pb2))
