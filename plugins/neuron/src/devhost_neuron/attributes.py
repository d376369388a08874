"""The attributes of Neuron devices and cores."""

from __future__ import annotations

from devhost.backend import Attribute

ATTRIBUTES = {
    "kind": Attribute(str, "a whole device, or one of its cores", "device", words=("device", "core")),
    "device": Attribute(int, "number of the device in the instance", 0),
    "core": Attribute(int, "number of the core in its device; devices have none", 0),
    "cores": Attribute(int, "how many cores the device has", 2),
    "devNode": Attribute(str, "path of the device node", "/dev/neuron0", begins="/dev/"),
    "model": Attribute(str, "name of the chip", "Trainium1"),
    "instanceType": Attribute(str, "family of EC2 instances", "Trn1"),
}
