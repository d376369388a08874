# Generated from registration.proto with grpcio-tools 1.85.1.
# fmt: off
"""The classes of the services in ``registration.proto``."""

from devhost.dra.api import registration_pb2
from devhost_testing.api.services import classes

globals().update(classes(registration_pb2))
