"""How an edit reaches the nodes: read by running pods, or with new pods."""

from __future__ import annotations

import pytest
from rendering import Chart, Rendered, refusal

ROLLING = {"rollout": "rolling"}


def name(rendered: Rendered) -> str:
    """The name of the ConfigMap, which its pods mount."""
    found = str(rendered.only("ConfigMap")["metadata"]["name"])
    assert rendered.mounts["/etc/devhost"]["configMap"] == {"name": found}
    return found


def test_names_of_configmaps_have_at_most_63_characters(chart: Chart) -> None:
    assert len(name(chart.render(ROLLING | {"fullnameOverride": "a" * 63}))) == 63


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ("slow", "at '/rollout'"),
        ({"mode": "slow"}, "at '/rollout/mode'"),
        ({"patience": "10"}, "at '/rollout/patience'"),
        ({"patience": 600}, "at '/rollout/patience'"),
        ({"speed": 1}, "additional properties 'speed' not allowed"),
    ],
)
def test_a_rollout_that_does_not_exist_is_refused(chart: Chart, rollout: object, message: str) -> None:
    assert message in refusal(chart, {"rollout": rollout})
