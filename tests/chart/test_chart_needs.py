"""The chart reads the configuration; ``golden/needs.txt`` has what the container needs because of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from rendering import Chart, Refused

from devhost.planning.settings import CDI_DIRECTORY, DEVICE_INFO_DIRECTORY, LABEL_DIRECTORY

FUSE = {"name": "example.com/fuse", "backend": "udev", "where": {"devNode": "/dev/fuse"}}


def configured(*resources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"config": {"version": 1, "resources": list(resources), **more}}


def test_the_default_directories_are_those_of_devhost(chart: Chart) -> None:
    mounts = chart.render({"host": {"cdi": True, "nodeLabels": True, "deviceInfo": True}}).mounts
    for directory in map(str, (CDI_DIRECTORY, LABEL_DIRECTORY, DEVICE_INFO_DIRECTORY)):
        assert mounts[directory]["hostPath"]["path"] == directory


def test_a_file_in_the_root_directory_is_refused_with_the_way_out(chart: Chart) -> None:
    fpga = {"name": "example.com/fpga", "backend": "fpga", "program": {"bitstream": "/crypto.gbs"}}
    with pytest.raises(Refused, match=r"names a file in the node's root directory.*set host\.root to true"):
        chart.render(configured(fpga))


def test_the_text_of_a_file_is_read_as_the_map_is(chart: Chart) -> None:
    values = configured({**FUSE, "inject": "cdi"}, labels={"write": True})
    text = "  # of the meters\n\n" + yaml.safe_dump(values["config"])
    rendered = chart.render({"config": text})
    assert rendered.mounts == chart.render(values).mounts
    assert rendered.configuration == text


def test_text_that_is_no_yaml_is_refused(chart: Chart) -> None:
    with pytest.raises(Refused, match="config is no YAML"):
        chart.render({"config": "version: 1\nresources: ["})
