"""Every line of the table, in its order. The limits are targets of the project."""

from __future__ import annotations

from .measure import Measure, Statistic

P50, P99, MAX = Statistic.P50, Statistic.P99, Statistic.MAX

START_10 = Measure("start-10", "process start → 10 resources with a first list", "s", {P50: 0.5}, (P50, MAX))
START_100 = Measure("start-100", "process start → 100 resources with a first list", "s", {P50: 1}, (P50, MAX))
START_BIG = Measure(
    "start-10000", "process start → first list of 10 000 devices", "s", {P50: 1.2}, (P50, MAX)
)
UEVENT = Measure("uevent", "kernel uevent → new list", "ms", {P50: 6, P99: 20})
FOLLOWING = Measure("following", "hot-plug soon after another change → new list", "ms", {P99: 10})
EVENT_100 = Measure("event-100", "backend's event → new list, 100 resources of 10 devices", "ms")
EVENT_200 = Measure("event-200", "the same, 200 resources of 10 devices", "ms", {P50: 20}, (P50, MAX))
EVENT_200_50 = Measure("event-200-50", "the same, 200 resources of 50 devices", "ms", {P50: 50}, (P50, MAX))
EVENT_CPU = Measure("event-cpu", "CPU time of such a change", "ms", {MAX: 30}, (MAX,))
EVENT_30000 = Measure("event-30000", "one of 30 000 devices changes → new list", "ms", {P50: 120}, (P50, MAX))
ALLOCATE_BESIDE = Measure(
    "allocate-beside",
    "slowest Allocate beside ten changes a second, 200 resources",
    "ms",
    {MAX: 15},
    (P50, MAX),
)
AT_RANDOM = Measure(
    "at-random", "hot-plug at random, mean gap 0.12 s, beside 1 000 devices", "ms", {P50: 6, P99: 20}
)
SUSTAINED = Measure("sustained", "CPU of one core for 1 000 changes a second, one minute", "%", {}, (MAX,))
LEDGER = Measure("ledger", "growth of memory over 90 000 allocations", "MB", {MAX: 1}, (MAX,))
EVENT_BIG = Measure("event-10000", "one of 10 000 devices changes → new list", "ms", {P50: 150}, (P50, MAX))
EVENT_BIG_FRESH = Measure(
    "event-10000-fresh", "the same, from a backend that rebuilds every device", "ms", {}, (P50, MAX)
)
COLLECT = Measure("collect", "what is true now, collected, 10 000 devices", "ms", {P99: 1}, (P50, P99))
RELOAD = Measure("reload", "edited file → new list", "ms", {P50: 1000}, (P50, MAX))
VERDICT = Measure("verdict", "verdict → new list", "ms", {P99: 300})
MEMORY_VERDICTS = Measure(
    "memory-verdicts", "what 1 000 verdicts add to resident memory", "MB", {MAX: 1}, (MAX,)
)
EMPTY = Measure("empty-call", "empty grpc.aio handler, round trip", "ms")
ALLOCATE = Measure("allocate", "Allocate, round trip", "ms", {P99: 5})
ALLOCATE_RATIO = Measure("allocate-ratio", "Allocate p50 over empty handler p50", "x", {MAX: 1.3}, (MAX,))
PREFER_8 = Measure("prefer-8", "preference among 8 linked GPUs, any number", "ms", {P99: 5})
PREFER_16 = Measure("prefer-16", "preference among 16 linked GPUs, any number", "ms", {P99: 50})
PREFER_BIG = Measure("prefer-10000", "preference for 8 of 10 000 devices", "ms", {P50: 50}, (P50, MAX))
PREFER_REPLICAS = Measure(
    "prefer-replicas", "preference for 8 of 100 000 replicas", "ms", {P50: 50}, (P50, MAX)
)
PREFER_PAIR = Measure("prefer-pair", "preference among 8 GPUs and 8 HCAs in turn", "ms", {P99: 5})
BURST = Measure("burst", "lists for a burst of 1 000 uevents", "lists", {MAX: 20}, (MAX,))
CHURN = Measure("churn", "lists for 1 000 changes in one burst", "lists", {MAX: 40}, (MAX,))
MEMORY = Measure("memory", "resident memory, 10 resources of 10 devices, scraped", "MB", {MAX: 46}, (MAX,))
MEMORY_DEFAULT = Measure(
    "memory-default", "resident memory, the default configuration, scraped", "MB", {MAX: 49}, (MAX,)
)
MEMORY_BIG = Measure("memory-10000", "resident memory, 10 000 devices", "MB", {MAX: 80}, (MAX,))
MEMORY_RDMA = Measure("memory-rdma", "resident memory, 8 shared RDMA adapters", "MB", {MAX: 56}, (MAX,))
ADAPTERS = Measure("adapters", "first scan of 256 RDMA adapters", "ms", {P50: 150}, (P50, MAX))
FUNCTIONS = Measure("functions", "first scan of 512 SR-IOV functions", "ms", {P50: 300}, (P50, MAX))
VF_BURST = Measure("vf-burst", "lists for 256 new virtual functions", "lists", {MAX: 3}, (MAX,))
NODES = Measure("nodes", "first scan of 10 000 device nodes in sysfs", "ms", {P50: 3000}, (P50, MAX))
NODES_ONE = Measure("nodes-one", "scan of them after an event of one", "ms", {P50: 100}, (P50, MAX))
NODES_AGAIN = Measure("nodes-again", "scan that reads all of them again", "ms", {P50: 3000}, (P50, MAX))
GPUS = Measure("gpus", "first scan of 8 GPUs and 14 MIG instances", "ms", {P50: 250}, (P50, MAX))
GPUS_AGAIN = Measure("gpus-again", "a later scan of them", "ms", {P50: 25}, (P50, MAX))
MEMORY_GPU = Measure(
    "memory-gpu", "resident memory, 8 GPUs, with the process for NVML", "MB", {MAX: 64}, (MAX,)
)
MEMORY_NETWORK = Measure("memory-network", "resident memory, rdma and sriov active", "MB", {MAX: 60}, (MAX,))
MEMORY_FPGA = Measure("memory-fpga", "what 8 FPGAs add to resident memory", "MB", {MAX: 2}, (MAX,))
MEMORY_ABSENT = Measure(
    "memory-absent", "what four backends without hardware add to resident memory", "MB", {MAX: 3}, (MAX,)
)
THREADS_ABSENT = Measure("threads-absent", "threads that they add", "threads", {MAX: 1}, (MAX,))
CPU_ABSENT = Measure("cpu-absent", "CPU of one core that they add", "%", {MAX: 0.05}, (MAX,))
MEMORY_DRA = Measure(
    "memory-dra", "resident memory, 10 DRA resources of 10 devices, scraped", "MB", {MAX: 55}, (MAX,)
)
PUBLISHED = Measure("slices-10000", "process start → slices with 10 000 devices", "s", {MAX: 60}, (MAX,))
SHARED_PUBLISHED = Measure(
    "slices-10000-shared", "the same with capacity that claims share by amount", "s", {MAX: 60}, (MAX,)
)
WRITES_AGAIN = Measure("slices-again", "writes of slices after a restart", "writes", {MAX: 0}, (MAX,))
CHANGE_TO_SLICE = Measure(
    "change-slice", "backend's event → slice at the API server", "s", {P50: 1.2}, (P50, MAX)
)
PREPARE = Measure("prepare", "Prepare, round trip", "ms")
PREPARE_RATIO = Measure(
    "prepare-ratio",
    "Prepare without the API server's time over Allocate, the backend asked for both, p50",
    "x",
    {MAX: 1.5},
    (MAX,),
)
PREPARE_PART = Measure(
    "prepare-part", "the same with one of 56 parts with shared counters", "x", {MAX: 1.5}, (MAX,)
)
SERIES = Measure("series", "series of 200 resources of 10 devices, all used", "series", {MAX: 5000}, (MAX,))
SCRAPE = Measure("scrape", "reading /metrics with them", "ms", {P50: 25}, (P50, MAX))
IDLE = Measure("idle", "CPU of one core while nothing happens", "%", {MAX: 0.1}, (MAX,))
HELD = Measure("held", "CPU of one core while 100 containers hold devices", "%", {MAX: 1}, (MAX,))
POLLED = Measure("polled", "the same, with a new pod and a scrape each second", "%", {MAX: 5}, (MAX,))

ISOLATION = {
    mode: (
        Measure(
            f"isolation-{mode}-allocate", f"Allocate, {beside}", "ms", {P99: allocate} if allocate else {}
        ),
        Measure(
            f"isolation-{mode}-change", f"event → new list, {beside}", "ms", {P99: change} if change else {}
        ),
    )
    for mode, beside, allocate, change in (
        ("calm", "beside a backend that behaves well", 0, 0),
        ("hang", "beside a backend that hangs", 0, 0),
        ("raise", "beside a backend that always raises", 0, 0),
        ("python", "beside a backend that uses a core in Python", 0, 0),
        ("c", "beside a backend that uses a core in C", 0, 0),
        ("nvml", "beside a backend of GPUs whose NVML hangs", 0, 0),
    )
}
"""Allocate and a change of an undisturbed resource, by the behaviour of another backend."""

MEASURES = (
    START_10,
    START_100,
    START_BIG,
    UEVENT,
    FOLLOWING,
    EVENT_100,
    EVENT_200,
    EVENT_200_50,
    EVENT_CPU,
    EVENT_BIG,
    EVENT_30000,
    EVENT_BIG_FRESH,
    AT_RANDOM,
    SUSTAINED,
    COLLECT,
    RELOAD,
    VERDICT,
    EMPTY,
    ALLOCATE,
    ALLOCATE_RATIO,
    ALLOCATE_BESIDE,
    LEDGER,
    PREFER_8,
    PREFER_16,
    PREFER_BIG,
    PREFER_REPLICAS,
    PREFER_PAIR,
    BURST,
    CHURN,
    MEMORY,
    MEMORY_DEFAULT,
    MEMORY_BIG,
    MEMORY_VERDICTS,
    MEMORY_RDMA,
    ADAPTERS,
    FUNCTIONS,
    VF_BURST,
    NODES,
    NODES_ONE,
    NODES_AGAIN,
    GPUS,
    GPUS_AGAIN,
    MEMORY_GPU,
    MEMORY_NETWORK,
    MEMORY_FPGA,
    MEMORY_ABSENT,
    THREADS_ABSENT,
    CPU_ABSENT,
    MEMORY_DRA,
    PUBLISHED,
    SHARED_PUBLISHED,
    WRITES_AGAIN,
    CHANGE_TO_SLICE,
    PREPARE,
    PREPARE_RATIO,
    PREPARE_PART,
    SERIES,
    SCRAPE,
    IDLE,
    HELD,
    POLLED,
    *(measure for pair in ISOLATION.values() for measure in pair),
)
