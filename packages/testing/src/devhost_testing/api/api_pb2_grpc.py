# Generated from api.proto with grpcio-tools 1.85.1.
# fmt: off
from devhost.kubelet.api import api_pb2
from devhost_testing.api.services import classes

globals().update(classes(api_pb2))
