"""How real GPUs can be divided (MIG), for the stub NVML library: profiles, their ids, parts and placements.

A100: go-nvml, ``pkg/nvml/mock/gpus/a100.go``. H200: read from one through NVML (driver 580.159.04, MIG off).
The ids, H100 and B200: NVIDIA's MIG user guide (``nvidia-smi mig -lgip`` and ``-lgipp``). Memory is in MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """A GPU instance profile. ``index`` is ``NVML_GPU_INSTANCE_PROFILE_…``; ``most`` is how many fit."""

    index: int
    id: int
    name: str
    slices: int
    most: int
    sm: int
    copy: int
    decoder: int
    jpeg: int
    ofa: int
    memory: int
    starts: tuple[int, ...]
    size: int

    @property
    def fields(self) -> dict[str, object]:
        """The fields of its line in the file of the library."""
        fields: dict[str, object] = {key: getattr(self, key) for key in self.__dataclass_fields__}
        return {**fields, "starts": ",".join(map(str, self.starts)), "name": f"MIG {self.name}"}


ALL = (0, 1, 2, 3, 4, 5, 6)
PAIRS = (0, 2, 4, 6)


def _model(rows: str) -> tuple[Profile, ...]:
    """Profiles from a table: the name, MiB, and the counts of multiprocessors and engines."""
    kinds = {  # index, id, most, starts, memory slices
        "1": (0, 19, 7, ALL, 1),
        "1+me": (7, 20, 1, ALL, 1),
        "1 wide": (9, 15, 4, PAIRS, 2),
        "2": (1, 14, 3, (0, 2, 4), 2),
        "3": (2, 9, 2, (0, 4), 4),
        "4": (3, 5, 1, (0,), 4),
        "7": (4, 0, 1, (0,), 8),
    }
    found = []
    for row, (index, number, most, starts, size) in zip(
        rows.strip().splitlines(), kinds.values(), strict=True
    ):
        name, memory, sm, copy, decoder, jpeg, ofa = row.split()
        found.append(
            Profile(
                index,
                number,
                name,
                int(name[0]),
                most,
                int(sm),
                int(copy),
                int(decoder),
                int(jpeg),
                int(ofa),
                int(memory),
                starts,
                size,
            )
        )
    return tuple(found)


MODELS = {
    "A100-40": _model("""
        1g.5gb     4864  14 1 0 0 0
        1g.5gb+me  4864  14 1 1 1 1
        1g.10gb    9856  14 1 1 0 0
        2g.10gb    9856  28 2 1 0 0
        3g.20gb    19968 42 3 2 0 0
        4g.20gb    19968 56 4 2 0 0
        7g.40gb    40192 98 7 5 1 1
    """),
    "A100-80": _model("""
        1g.10gb    9728  14 1 0 0 0
        1g.10gb+me 9728  14 1 1 1 1
        1g.20gb    19968 14 1 1 0 0
        2g.20gb    19968 28 2 1 0 0
        3g.40gb    40192 42 3 2 0 0
        4g.40gb    40192 56 4 2 0 0
        7g.80gb    80384 98 7 5 1 1
    """),
    "H100-80": _model("""
        1g.10gb    9984  16  1 1 1 0
        1g.10gb+me 9984  16  1 1 1 1
        1g.20gb    20096 26  1 1 1 0
        2g.20gb    20096 32  2 2 2 0
        3g.40gb    40448 60  3 3 3 0
        4g.40gb    40448 64  4 4 4 0
        7g.80gb    81152 132 8 7 7 1
    """),
    "H200-141": _model("""
        1g.18gb    16384  16  1 1 1 0
        1g.18gb+me 16384  16  1 1 1 1
        1g.35gb    33280  26  1 1 1 0
        2g.35gb    33280  32  2 2 2 0
        3g.71gb    71424  60  3 3 3 0
        4g.71gb    71424  64  4 4 4 0
        7g.141gb   143360 132 8 7 7 1
    """),
    "B200-180": _model("""
        1g.23gb    20992  18  2  1 1 0
        1g.23gb+me 20992  18  2  1 1 1
        1g.45gb    45312  30  2  1 1 0
        2g.45gb    45312  36  4  2 2 0
        3g.90gb    91136  70  6  3 3 0
        4g.90gb    91136  72  8  4 4 0
        7g.180gb   182784 148 16 7 7 1
    """),
}
"""The profiles of each model."""


def placements(model: str) -> Iterator[tuple[Profile, int]]:
    """Every profile of a model at every place."""
    for profile in MODELS[model]:
        for start in profile.starts:
            yield profile, start
