"""Durations, the clock, programs and sockets, which are passed at construction so that tests can replace
them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from devhost.backend.frozen import frozen
from devhost.backend.sysfs import is_live, write

if TYPE_CHECKING:
    from devhost.backend.process import Kill  # only where NVIDIA's driver is


@frozen
class Timings:
    """Durations in seconds.

    All vendors:

    ``new_vendor``
        Until the events of a vendor whose first card has just appeared are listened to.
    ``driver_answers``
        Deadline for the drivers of all DRM cards together to answer a probe.
    ``occupied_check``, ``occupied_retry``
        Between two looks at the processes that use cards, and the longest time after one that failed.
    ``occupied_pod``
        How long a process of a pod may use a card that the pod does not hold: pods start and end.
    ``wedged_answers``
        The same for cards that may be wedged: a scan waits for them.

    AMD:

    ``topology_check``
        Between reads of the generation of the compute topology: its changes cause no uevent.
    ``exporter_answers``
        What the device metrics exporter may take to answer.

    NVIDIA:

    ``check``
        Between checks of what is unhealthy, hangs or is due.
    ``first_answer``
        What the first scan waits for NVML, which has to wake up the GPUs.
    ``answer``
        What any other request waits. A later one does not wait while this one is unanswered.
    ``stale``
        Without an answer for so long, the last report of NVML is no longer believed.
    ``links``
        How long NVLinks that were read are believed: they come up some time after the driver.
    ``mps_check``
        Between checks whether MPS servers run.
    ``alone_every``
        Between two requests to a GPU that was released.
    ``hold``
        After the last sign, before a check can close an incident.
    ``blind_hold``
        The same after an event of a GPU that cannot report whether it needs a reset (an older driver or GPU).

    NVML's process:

    ``hung``
        Without progress for so long, a request or a GPU ends the process: without persistence mode a driver
        may take long to wake up a GPU.
    ``fresh``
        How long an answer that came too late for its request is good for the next one.
    ``grace``
        What the process may take to release the driver before it is killed.
    ``first_delay``, ``last_delay``
        Between tries to start what fails; they double.
    ``release``
        After a GPU was asked to be unbound, nothing is opened for so long.
    ``releases``
        What the processes may take to end when the driver is released on request.
    ``unloading``
        With signs that the driver is being unloaded, it is not opened for so long.
    ``alone``
        What a GPU that is asked alone may take to answer.
    ``instances``
        What creating or destroying MIG instances may take for one claim: less than an Allocate.
    ``kept``
        How long a MIG instance stays after it was created, also if no claim holds it: to create several for
        one claim may take longer than an Allocate, and the kubelet tries again.
    ``compare``
        Between comparisons of the MIG instances: not every driver reports their changes.
    ``event_wait``
        What one wait for events may take, and so the longest until the driver is released.
    ``exit_grace``
        What a call may take to end after devhost has ended.
    ``overtake``
        Until the next GPU is asked beside one that has not answered.
    ``silence``
        Without an answer of one more GPU, until the answers that are there are given.

    CDI specifications:

    ``specification_check``
        Between checks whether a file still fits, and the longest delay until what failed is tried again.
    ``specification_retry``
        Until what failed is tried again for the first time.
    ``nvidia_ctk``
        What one run of nvidia-ctk may take: it wakes up the GPUs.
    ``nvidia_ctk_grace``
        What nvidia-ctk may take to end after it was killed.

    Time slices; ``first_delay`` and ``last_delay`` count here, too:

    ``nvidia_smi``
        What one run of nvidia-smi for one GPU may take.
    """

    new_vendor: float = 5.0
    driver_answers: float = 4.0
    wedged_answers: float = 1.0
    occupied_check: float = 5.0
    occupied_retry: float = 60.0
    occupied_pod: float = 10.0
    topology_check: float = 5.0
    exporter_answers: float = 5.0
    check: float = 2.0
    first_answer: float = 8.0
    answer: float = 4.0
    stale: float = 30.0
    links: float = 60.0
    mps_check: float = 2.0
    alone_every: float = 15.0
    hold: float = 10.0
    blind_hold: float = 300.0
    hung: float = 20.0
    fresh: float = 5.0
    grace: float = 3.0
    first_delay: float = 1.0
    last_delay: float = 60.0
    release: float = 10.0
    releases: float = 10.0
    unloading: float = 1800.0
    alone: float = 15.0
    instances: float = 6.0
    kept: float = 30.0
    compare: float = 5.0
    event_wait: float = 0.5
    exit_grace: float = 2.0
    overtake: float = 0.5
    silence: float = 1.5
    specification_check: float = 60.0
    specification_retry: float = 1.0
    nvidia_ctk: float = 25.0
    nvidia_ctk_grace: float = 2.0
    nvidia_smi: float = 5.0


DEFAULT = Timings()
"""The durations outside tests."""

EXPORTER_SOCKET = "/var/lib/amd-metrics-exporter/amdgpu_device_metrics_exporter_grpc.socket"
"""Where AMD's device metrics exporter listens."""


@frozen
class Environment:
    """What the vendors' code uses besides the machine's files.

    ``timings``
        Durations.
    ``is_live``
        Whether a root is that of a running machine, whose drivers can be asked.
    ``ask_driver``
        Asks the driver of a DRM node (path, driver): its error in words, empty if it answered. ``None`` is
        :func:`devhost_gpu.drm.refusal`.
    ``exporter_socket``
        Where AMD's device metrics exporter listens, below the root.
    ``find_binding``
        Returns the directory that has ``pynvml``, empty if there is none. ``None`` is
        :func:`devhost_gpu.nvml.client.binding`.
    ``kill``
        Kills a process that uses NVML. ``None`` is :func:`devhost.backend.process.kill_group`.
    ``clock``
        Monotonic seconds.
    ``write``
        Writes to a file in sysfs, see :func:`devhost.backend.sysfs.write`.
    """

    timings: Timings = DEFAULT
    is_live: Callable[[Path], bool] = is_live
    ask_driver: Callable[[str, str], str] | None = None
    exporter_socket: str = EXPORTER_SOCKET
    find_binding: Callable[[], str] | None = None
    kill: Kill | None = None
    clock: Callable[[], float] = time.monotonic
    write: Callable[[Path, str], None] = write


STANDARD = Environment()
"""The environment outside tests."""
