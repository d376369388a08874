"""What ails AMD's cards: errors they counted, what the exporter says, a driver that does not answer."""

from __future__ import annotations

from collections.abc import Mapping

from devhost.backend import Context, Health, unhealthy
from devhost.backend.sysfs import Sysfs

from . import exporter
from .adapter import Adapter
from .condition import Conditions
from .options import GpuOptions
from .ras import uncorrectable


class Illness:
    """Asks AMD's cards how they are. Used by one thread."""

    def __init__(self, context: Context, options: GpuOptions) -> None:
        self._context = context
        self._sysfs = Sysfs(context.root)
        self._conditions = Conditions(context.root, options)
        self._limit = options.uncorrectable_errors
        self._complaint = ""

    def of(self, wholes: Mapping[str, Adapter]) -> dict[str, Health]:
        """What is wrong with cards, by their ids; who is well is not named.

        Args:
            wholes: the GPU that each card is, or is a partition of: what ails it ails all of its partitions.
        """
        verdicts: dict[str, Health] = {}
        for name, word in self._told().items():
            if name in wholes and word == "unhealthy":
                verdicts[name] = unhealthy("the device metrics exporter says that it is unhealthy")
        gpus = {whole.id: whole for whole in wholes.values()}
        errors = {name: self._counted(whole.path) for name, whole in gpus.items()}
        ill = {name: unhealthy(reason) for name, reason in errors.items() if reason}
        ill |= self._conditions.of(gpus)
        verdicts.update((name, ill[whole.id]) for name, whole in wholes.items() if whole.id in ill)
        return verdicts

    def _counted(self, path: str) -> str:
        if not self._limit:
            return ""
        errors = uncorrectable(self._sysfs, path)
        if sum(errors.values()) < self._limit:
            return ""
        text = ", ".join(f"{count} of {block}" for block, count in sorted(errors.items()))
        return f"uncorrectable errors since its driver was loaded: {text}"

    def _told(self) -> Mapping[str, str]:
        try:
            told = exporter.verdicts(self._context.root)
            complaint = ""
        except exporter.NoAnswerError as error:
            told, complaint = {}, str(error)
        if complaint and complaint != self._complaint:
            self._context.log.warning("asking the device metrics exporter failed: %s", complaint)
        elif self._complaint and not complaint:
            self._context.log.info("the device metrics exporter answers again")
        self._complaint = complaint
        return told
