"""The dashboard can be imported unchanged into any Grafana."""

from __future__ import annotations

from collections import Counter

KINDS = {"row", "stat", "table", "timeseries", "heatmap"}


def test_the_dashboard_has_all_required_fields(dashboard):
    assert dashboard["title"] == "devhost"
    assert isinstance(dashboard["schemaVersion"], int)
    assert "uid" not in dashboard
    assert dashboard.get("id") is None


def test_the_dashboard_can_be_filtered_by_data_source_node_and_resource(dashboard):
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert list(variables) == ["datasource", "node", "resource"]
    assert variables["datasource"]["type"] == "datasource"
    for name in ("node", "resource"):
        assert variables[name]["multi"]
        assert variables[name]["allValue"] == ".*"


def test_every_panel_has_a_unique_id_a_title_and_a_description(panels):
    assert [number for number, count in Counter(panel["id"] for panel in panels).items() if count > 1] == []
    assert {panel["type"] for panel in panels} == KINDS
    for panel in panels:
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]


def test_no_panel_depends_on_the_data_source_of_an_installation(panels, dashboard):
    sources = [panel["datasource"] for panel in panels if panel["type"] != "row"]
    sources += [target["datasource"] for panel in panels for target in panel.get("targets", ())]
    sources += [one["datasource"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


def test_no_panel_overlaps_another(panels):
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_every_panel_follows_the_chosen_nodes(panels):
    for panel in panels:
        for target in panel.get("targets", ()):
            assert '=~"$node"' in target["expr"], panel["title"]
