"""What devhost counts, as calls named after what happened.

:class:`Metrics` counts nothing: it is what runs without ``--listen``, where nobody reads the figures.
``prometheus.PrometheusMetrics`` overrides every method.

Durations are in seconds. A resource or backend must have been added before anything is told of it; what
is told of an unknown one is dropped, so that a late event cannot bring back the series of a resource
that has gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class CallFailure(StrEnum):
    """Why an Allocate or PreStartContainer call failed."""

    INVALID = "invalid"
    """The call itself was wrong: no ids, unknown ids, or one id twice."""
    UNHEALTHY = "unhealthy"
    """A device is known to be unusable."""
    MISSING = "missing"
    """A device node or mount that the container needs is not there."""
    REFUSED = "refused"
    """The backend said that the device cannot be handed out now."""
    TIMEOUT = "timeout"
    """The backend did not answer in time."""
    ERROR = "error"
    """The backend failed or answered nonsense."""


class BackendFailure(StrEnum):
    """How a call of a backend failed."""

    ERROR = "error"
    """It raised."""
    TIMEOUT = "timeout"
    """It did not answer within its deadline."""
    INVALID = "invalid"
    """It answered something that cannot be used."""


class ObserverFailure(StrEnum):
    """How a call of an observer failed."""

    ERROR = "error"
    """It raised."""
    TIMEOUT = "timeout"
    """It did not return within its deadline."""


class Guess(StrEnum):
    """How it turned out that two requests were taken for one container's."""

    RIGHT = "right"
    """One container has the devices of both."""
    WRONG = "wrong"
    """Two containers have them."""
    UNKNOWN = "unknown"
    """The kubelet has not said in time who has them."""


class Metrics:
    """The events devhost counts; this class lets them pass."""

    def resource_added(self, resource: str, backend: str, prepares: bool = False) -> None:
        """The plan has a resource of this name: its series exist from now on, at zero.

        ``prepares`` is whether the kubelet calls PreStartContainer for it; else there are no series of that.
        """

    def resource_removed(self, resource: str) -> None:
        """The resource left the configuration: its series end."""

    def devices(self, resource: str, healthy: int, unhealthy: Mapping[str, int]) -> None:
        """The resource's inventory now has so many tokens (replicas count), those unhealthy by reason."""

    def registered(self, resource: str) -> None:
        """The kubelet took a registration."""

    def registration_failed(self, resource: str) -> None:
        """The kubelet refused a registration or could not be reached."""

    def streams(self, resource: str, count: int) -> None:
        """So many ListAndWatch streams are open now."""

    def list_sent(self, resource: str, devices: int, revision: int, since_event: float | None) -> None:
        """A list left for the kubelet; ``since_event`` is ``None`` when no event caused it."""

    def allocated(self, resource: str, seconds: float) -> None:
        """Allocate answered with devices."""

    def allocation_failed(self, resource: str, reason: CallFailure, seconds: float) -> None:
        """Allocate answered with an error."""

    def prepared(self, resource: str, seconds: float) -> None:
        """PreStartContainer answered that the devices are ready."""

    def preparation_failed(self, resource: str, reason: CallFailure, seconds: float) -> None:
        """PreStartContainer answered with an error."""

    def preferred(self, resource: str, seconds: float) -> None:
        """GetPreferredAllocation answered."""

    def affinity_guessed(self, result: Guess) -> None:
        """It is known now, or never will be, whether a guess that devices were drawn by was right."""

    def backend_added(self, backend: str) -> None:
        """A backend runs: its series exist from now on, at zero."""

    def backend_removed(self, backend: str) -> None:
        """No resource needs the backend any more: its series end."""

    def discovered(self, backend: str, seconds: float) -> None:
        """A discovery went well and took so long."""

    def backend_failed(self, backend: str, kind: BackendFailure) -> None:
        """One call of the backend failed."""

    def backend_degraded(self, backend: str, degraded: bool) -> None:
        """The backend works on its last good list (``True``), or is well again (``False``)."""

    def provisioning(self, backend: str, states: Mapping[str, bool]) -> None:
        """The hardware stands otherwise: every state there is, and whether it is the present one."""

    def labels_wanted(self, backend: str) -> None:
        """Node labels of the backend are wanted: their series exist from now on, at zero."""

    def labels_unwanted(self, backend: str) -> None:
        """None are wanted any more: their series end."""

    def labels_written(self, backend: str, labels: int, anew: bool) -> None:
        """Its file has so many labels; ``anew`` is whether it had to be made, changed or removed for that."""

    def labels_failed(self, backend: str) -> None:
        """The backend did not tell its labels, or the file could not be written."""

    def planned(self, refusals: Mapping[str, int]) -> None:
        """A new plan holds; ``refusals`` is how many devices it left out, by a short fixed reason.

        A reason of an earlier plan that is not among them goes to zero.
        """

    def config_loaded(self, generation: int) -> None:
        """A configuration took effect, the first one or a reload."""

    def config_rejected(self) -> None:
        """A changed configuration was refused and the old one stays."""

    def observer_added(self, observer: str) -> None:
        """An observer listens: its series exist from now on, at zero."""

    def observer_removed(self, observer: str) -> None:
        """The observer is called no more: its series end."""

    def observer_failed(self, observer: str, kind: ObserverFailure) -> None:
        """One call of the observer failed."""

    def observer_dropped(self, observer: str, news: int) -> None:
        """So many news were dropped because the observer was too slow, or paused."""

    def observer_paused(self, observer: str, paused: bool) -> None:
        """The observer is left in peace for a while (``True``), or called again (``False``)."""
