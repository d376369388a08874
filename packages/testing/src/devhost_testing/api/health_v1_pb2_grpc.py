# Generated from health_v1.proto with grpcio-tools 1.85.1.
# fmt: off
"""The classes of the services in ``health_v1.proto``."""

from devhost.dra.api import health_v1_pb2
from devhost_testing.api.services import classes

globals().update(classes(health_v1_pb2))
