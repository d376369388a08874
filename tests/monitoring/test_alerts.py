"""Each alert fires in its case, and not without problems, according to promtool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.command import completed

METRICS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (apt install prometheus)"
)

MINUTES = 240
"""How long each series is, at one sample a minute."""

ON = 'job="devhost/devhost",instance="10.0.0.1:9400",node="n1"'
OTHER = 'job="devhost/devhost",instance="10.0.0.2:9400",node="n2"'
THIRD = 'job="devhost/devhost",instance="10.0.0.3:9400",node="n3"'
GPU = 'resource="nvidia.com/gpu"'
ENTRY = 'entry="resources[0]",resource="nvidia.com/gpu",backend="gpu"'
KUBELET = "/var/lib/kubelet/device-plugins"

STEADY = f"x{MINUTES}"

WELL = {
    f"up{{{ON}}}": f"1+0{STEADY}",
    f"process_start_time_seconds{{{ON}}}": f"1000+0{STEADY}",
    f'devhost_build_info{{{ON},version="0.1.0"}}': f"1+0{STEADY}",
    f'devhost_build_info{{{OTHER},version="0.1.0"}}': f"1+0{STEADY}",
    f'devhost_config_info{{{ON},group="devhost",sha256="ab"}}': f"1+0{STEADY}",
    f'devhost_config_info{{{OTHER},group="devhost",sha256="ab"}}': f"1+0{STEADY}",
    f'devhost_config_info{{{THIRD},group="devhost_h100",sha256="cd"}}': f"1+0{STEADY}",
    f'devhost_problems{{{ON},kind="kubelet"}}': f"0+0{STEADY}",
    f'devhost_problems{{{ON},kind="device"}}': f"0+0{STEADY}",
    f'devhost_problems{{{ON},kind="driver"}}': f"0+0{STEADY}",
    f'devhost_problems{{{ON},kind="entry"}}': f"0+0{STEADY}",
    f'devhost_entry_devices{{{ON},{ENTRY},optional="false"}}': f"8+0{STEADY}",
    f'devhost_entry_devices{{{ON},entry="resources[1]",resource="x.com/y",backend="fpga",optional="true"}}': (
        f"0+0{STEADY}"
    ),
    f"devhost_streams{{{ON},{GPU}}}": f"1+0{STEADY}",
    f'devhost_devices{{{ON},{GPU},backend="gpu",health="Healthy",reason=""}}': f"8+0{STEADY}",
    f'devhost_devices{{{ON},{GPU},backend="gpu",health="Unhealthy",reason=""}}': f"0+0{STEADY}",
    f"devhost_registration_failures_total{{{ON},{GPU}}}": f"1+0{STEADY}",
    f'devhost_allocation_failures_total{{{ON},{GPU},reason="missing"}}': f"1+0{STEADY}",
    f'devhost_backend_degraded{{{ON},backend="gpu"}}': f"0+0{STEADY}",
    f"devhost_config_last_reload_success{{{ON}}}": f"1+0{STEADY}",
    f'devhost_provisioning{{{ON},backend="sriov",state="failed"}}': f"0+0{STEADY}",
    f'devhost_provisioning{{{ON},backend="sriov",state="waiting"}}': f"1+0{STEADY}",
    f'devhost_label_failures_total{{{ON},backend="gpu"}}': f"1+0{STEADY}",
    f'devhost_observer_paused{{{ON},observer="audit"}}': f"0+0{STEADY}",
    f'devhost_verdicts_oldest_timestamp_seconds{{{ON},kind="cordon",by="alice"}}': f"0+0{STEADY}",
    f'devhost_event_to_list_seconds_bucket{{{ON},{GPU},le="2.0"}}': f"0+10{STEADY}",
    f'devhost_event_to_list_seconds_bucket{{{ON},{GPU},le="20.0"}}': f"0+10{STEADY}",
    f'devhost_event_to_list_seconds_bucket{{{ON},{GPU},le="+Inf"}}': f"0+10{STEADY}",
}
"""A node on which all is well. A few things have failed once, long ago."""


def info(kind: str, subject: str, reason: str) -> dict[str, str]:
    labels = f'kind="{kind}",subject="{subject}",reason="{reason}"'
    return {f"devhost_problem_info{{{ON},{labels}}}": f"1+0{STEADY}"}


ILL = f'devhost_devices{{{ON},{GPU},backend="gpu",health="Unhealthy",reason="Xid 79"}}'

WRONG: dict[str, dict[str, str | None]] = {
    "DevhostDown": {f"up{{{ON}}}": f"0+0{STEADY}"},
    "DevhostAbsent": {name: None for name in WELL if name.startswith("devhost_build_info")},
    "DevhostRestarting": {f"process_start_time_seconds{{{ON}}}": f"1000+60{STEADY}"},
    "DevhostKubeletAbsent": {f'devhost_problems{{{ON},kind="kubelet"}}': f"1+0{STEADY}"},
    "DevhostResourceNotServed": {f"devhost_streams{{{ON},{GPU}}}": f"0+0{STEADY}"},
    "DevhostTwoStreams": {f"devhost_streams{{{ON},{GPU}}}": f"2+0{STEADY}"},
    "DevhostTwice": {
        'devhost_build_info{job="other",instance="n1:9401",node="n1",version="0.1.0"}': f"1+0{STEADY}"
    },
    "DevhostRegistrationFailing": {f"devhost_registration_failures_total{{{ON},{GPU}}}": f"0+1{STEADY}"},
    "DevhostDevicesUnhealthy": {
        ILL: f"2+0{STEADY}",
        f'devhost_problems{{{ON},kind="device"}}': f"2+0{STEADY}",
    },
    "DevhostDevicesLeft": {f'devhost_devices_left{{{ON},{GPU},reason="is gone"}}': f"1+0{STEADY}"},
    "DevhostEntryDevices": {
        f'devhost_entry_devices{{{ON},{ENTRY},optional="false"}}': f"7+0{STEADY}",
        f'devhost_problems{{{ON},kind="entry"}}': f"1+0{STEADY}",
        **info("entry", "nvidia.com/gpu", "7 of 8 devices"),
    },
    "DevhostDriverMissing": {
        f'devhost_problems{{{ON},kind="driver"}}': f"1+0{STEADY}",
        **info("driver", "gpu 0000:3b:00.0", "no driver is bound to it"),
    },
    "DevhostAllocationsFailing": {
        f'devhost_allocation_failures_total{{{ON},{GPU},reason="missing"}}': f"0+1{STEADY}"
    },
    "DevhostBackendDegraded": {
        f'devhost_backend_degraded{{{ON},backend="gpu"}}': f"1+0{STEADY}",
        **info("backend", "gpu", "no answer within 10 s"),
    },
    "DevhostConfigRefused": {f"devhost_config_last_reload_success{{{ON}}}": f"0+0{STEADY}"},
    "DevhostConfigSkew": {
        f'devhost_config_info{{{OTHER},group="devhost",sha256="ab"}}': None,
        f'devhost_config_info{{{OTHER},group="devhost",sha256="cd"}}': f"1+0{STEADY}",
    },
    "DevhostProvisioningFailed": {
        f'devhost_provisioning{{{ON},backend="sriov",state="failed"}}': f"1+0{STEADY}"
    },
    "DevhostLabelsFailing": {f'devhost_label_failures_total{{{ON},backend="gpu"}}': f"0+1{STEADY}"},
    "DevhostObserverPaused": {f'devhost_observer_paused{{{ON},observer="audit"}}': f"1+0{STEADY}"},
    "DevhostCordonForgotten": {
        f'devhost_verdicts_oldest_timestamp_seconds{{{ON},kind="cordon",by="alice"}}': f"-700000+0{STEADY}"
    },
    "DevhostSlowLists": {f'devhost_event_to_list_seconds_bucket{{{ON},{GPU},le="2.0"}}': f"0+9{STEADY}"},
    "DevhostProblems": {f'devhost_problems{{{ON},kind="refused"}}': f"1+0{STEADY}"},
    "DevhostVersionSkew": {
        f'devhost_build_info{{{OTHER},version="0.1.0"}}': None,
        f'devhost_build_info{{{OTHER},version="0.2.0"}}': f"1+0{STEADY}",
    },
}
"""What is different where an alert fires."""

BROAD = {"DevhostProblems"}
"""Alerts that fire beside others, because they are about everything."""


def firing(alert: str) -> dict[str, Any]:
    return {
        "expr": f'count by (alertname) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": f"{MINUTES - 5}m",
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
    }


def nothing_but(*alerts: str) -> dict[str, Any]:
    expected = "|".join((*alerts, *BROAD))
    return {
        "expr": f'count(ALERTS{{alertname!~"{expected}",alertstate="firing"}})',
        "eval_time": f"{MINUTES - 5}m",
        "exp_samples": [],
    }


def promtool(tmp_path: Path, rules_file: Path, series: dict[str, str | None], **asked: Any) -> None:
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items() if values],
        **asked,
    }
    document = {"rule_files": [str(rules_file)], "evaluation_interval": "1m", "tests": [test]}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(document))
    assert PROMTOOL is not None
    done = completed(PROMTOOL, "test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_rules_are_valid(rules_file):
    assert PROMTOOL is not None
    subprocess.run([PROMTOOL, "check", "rules", str(rules_file)], check=True, timeout=240)


@needs_promtool
def test_without_problems_no_alert_fires(tmp_path, rules_file):
    promtool(tmp_path, rules_file, dict(WELL), promql_expr_test=[nothing_but()])


@needs_promtool
@pytest.mark.parametrize("alert", WRONG)
def test_each_alert_fires_for_its_case_only(tmp_path, rules_file, alert):
    promtool(tmp_path, rules_file, WELL | WRONG[alert], promql_expr_test=[firing(alert), nothing_but(alert)])


REFUSED = f'devhost_allocation_failures_total{{{ON},{GPU},reason="refused"}}'
STARTED = f"process_start_time_seconds{{{ON}}}"


def firing_at(*minutes: int) -> list[dict[str, Any]]:
    """Whether failing allocations are an alert just before, during and just after these minutes."""
    expression = 'count(ALERTS{alertname="DevhostAllocationsFailing",alertstate="firing",reason="refused"})'
    expected = [{"labels": "{}", "value": 1}]
    return [
        {
            "expr": expression,
            "eval_time": f"{minute}m",
            "exp_samples": expected if minute in minutes else [],
        }
        for minute in range(minutes[0] - 1, minutes[-1] + 2)
    ]


@needs_promtool
def test_the_first_failure_for_a_reason_is_an_alert_for_a_quarter_of_an_hour(tmp_path, rules_file):
    """Before it there is no series of this reason."""
    series = WELL | {REFUSED: "_x200 1+0x39"}
    promtool(tmp_path, rules_file, series, promql_expr_test=firing_at(*range(200, 215)))


@needs_promtool
@pytest.mark.parametrize("after", [0, 3], ids=["before its first scrape", "later"])
def test_the_first_failure_of_a_devhost_that_just_started_is_an_alert(tmp_path, rules_file, after):
    young = {name: f"_x200 {values.replace(STEADY, 'x39')}" for name, values in WELL.items() if values}
    series = young | {STARTED: f"_x200 {200 * 60 + 30}+0x39", REFUSED: f"_x{200 + after} 1+0x39"}
    promtool(tmp_path, rules_file, series, promql_expr_test=firing_at(*range(200 + after, 215 + after)))


@needs_promtool
def test_old_failures_are_no_alert_when_prometheus_returns(tmp_path, rules_file):
    """It was down for half an hour, so it has no sample of a quarter of an hour ago."""
    steady = {
        name: values.removesuffix(STEADY) for name, values in (WELL | {REFUSED: f"7+0{STEADY}"}).items()
    }
    series = {name: f"{value}x180 _x30 {value}x29" for name, value in steady.items()}
    never = [
        {
            "expr": 'ALERTS{alertname="DevhostAllocationsFailing"}',
            "eval_time": f"{minute}m",
            "exp_samples": [],
        }
        for minute in range(180, 240)
    ]
    promtool(tmp_path, rules_file, dict(series), promql_expr_test=never)


@needs_promtool
def test_an_exclusive_device_is_not_an_alert(tmp_path, rules_file):
    promtool(tmp_path, rules_file, WELL | {ILL: f"2+0{STEADY}"}, promql_expr_test=[nothing_but()])


@needs_promtool
def test_a_devhost_scraped_by_two_jobs_counts_once(tmp_path, rules_file):
    again = {name.replace('job="devhost/devhost"', 'job="devhost"'): values for name, values in WELL.items()}
    assert not again.keys() & WELL.keys()
    promtool(tmp_path, rules_file, WELL | again, promql_expr_test=[nothing_but()])


@needs_promtool
def test_devices_with_one_address_on_two_nodes_are_not_a_shared_device(tmp_path, rules_file):
    """The exact query in docs/metrics.md."""
    (query,) = re.findall(r"^(count by .*device_held.*?) +#", METRICS.read_text(), re.MULTILINE)
    device = 'resource="nvidia.com/gpu",device="0000:41:00.0",namespace="team"'
    held = {f'devhost_device_held{{{on},{device},pod="train"}}': f"1+0{STEADY}" for on in (ON, OTHER)}
    asked = {"expr": query, "eval_time": "30m"}
    promtool(tmp_path, rules_file, WELL | held, promql_expr_test=[{**asked, "exp_samples": []}])
    labels = '{instance="10.0.0.1:9400",resource="nvidia.com/gpu",device="0000:41:00.0"}'
    held |= {f'devhost_device_held{{{ON},{device},pod="serve"}}': f"1+0{STEADY}"}
    asked |= {"exp_samples": [{"labels": labels, "value": 2}]}
    promtool(tmp_path, rules_file, WELL | held, promql_expr_test=[asked])


@needs_promtool
def test_a_short_outage_is_not_an_alert(tmp_path, rules_file):
    short = f"1+0x{MINUTES - 9} 0+0x3 1+0x20"
    series = WELL | {f"up{{{ON}}}": short, f"devhost_streams{{{ON},{GPU}}}": short}
    promtool(tmp_path, rules_file, series, promql_expr_test=[nothing_but()])


@needs_promtool
@pytest.mark.parametrize(
    ("alert", "labels", "summary", "description"),
    [
        (
            "DevhostBackendDegraded",
            {"backend": "gpu"},
            "backend gpu is degraded on n1",
            "Backend gpu on n1 fails or hangs; its last good list is offered. no answer within 10 s.",
        ),
        (
            "DevhostDevicesUnhealthy",
            {"resource": "nvidia.com/gpu"},
            "2 of nvidia.com/gpu on n1 are unhealthy",
            "2 devices of nvidia.com/gpu on n1 cannot be allocated to pods. 2 of them: Xid 79.",
        ),
        (
            "DevhostEntryDevices",
            {"job": "devhost/devhost", "kind": "entry"},
            "wrong number of devices on n1",
            "The configuration on n1 has entries without devices, or with another number than they expect. "
            "nvidia.com/gpu: 7 of 8 devices.",
        ),
    ],
)
def test_an_alert_has_the_node_and_the_reason_from_devhost(
    tmp_path, rules_file, rules, alert, labels, summary, description
):
    rule = next(rule for rule in rules if rule["alert"] == alert)
    where = {"instance": "10.0.0.1:9400", "node": "n1", **rule["labels"]}
    if alert == "DevhostBackendDegraded":
        where["job"] = "devhost/devhost"
    expected = {
        "exp_labels": {**where, **labels},
        "exp_annotations": {
            "summary": summary,
            "description": description,
            "runbook": rule["annotations"]["runbook"],
        },
    }
    asked = {"alertname": alert, "eval_time": "30m", "exp_alerts": [expected]}
    promtool(tmp_path, rules_file, WELL | WRONG[alert], alert_rule_test=[asked])


def test_every_alert_has_a_case_here(rules):
    assert [rule["alert"] for rule in rules] == list(WRONG)
