# Generated from dra_v1.proto with grpcio-tools 1.85.1.
# fmt: off
"""The classes of the services in ``dra_v1.proto``."""

from devhost.dra.api import dra_v1_pb2
from devhost_testing.api.services import classes

globals().update(classes(dra_v1_pb2))
