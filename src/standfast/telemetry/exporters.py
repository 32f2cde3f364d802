"""Metrics as Prometheus and OpenTelemetry take them: the same instruments, the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from standfast.errors import MissingExtraError
from standfast.telemetry.gauges import Gauges
from standfast.telemetry.instruments import INSTRUMENTS, MOST_LABELS, OTHER, HistogramValues, Labels
from standfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from standfast.telemetry.instruments import GaugeValue, Instrument
    from standfast.workflows.engine import Engine

INFINITY: Final = "+Inf"


class AttachedMetrics(Metrics):
    """Metrics with the gauges of the engines that they are a hook of."""

    def __init__(self, histogram: Callable[[Instrument], Any] = HistogramValues) -> None:
        super().__init__(histogram)
        self._gauges: Final[dict[Engine, Gauges]] = {}

    def attach(self, engine: Engine) -> None:
        """Show the gauges of an engine from now on. An engine does so when it opens, for its hooks."""
        self._gauges[engine] = Gauges(engine)

    def detach(self, engine: Engine) -> None:
        """Show them no longer."""
        self._gauges.pop(engine, None)

    async def refresh(self) -> None:
        """Read the gauges from the store, unless that was done in the last seconds."""
        for each in tuple(self._gauges.values()):
            await each.refresh()

    def gauges(self) -> list[GaugeValue]:
        """Return what the gauges say, as of the last seconds; they are read anew in the background."""
        values: dict[tuple[str, Labels], GaugeValue] = {}
        for each in tuple(self._gauges.values()):
            each.refresh_soon()
            values |= {(value.instrument.name, value.labels): value for value in each.read()}
        return list(values.values())


@final
class PrometheusMetrics(AttachedMetrics):
    """Metrics for Prometheus: a hook, and a collector of ``prometheus-client``.

        metrics = sf.admin.PrometheusMetrics()
        engine = sf.Engine("sqlite:///jobs.db", workflows=[fulfil], hooks=[metrics])

    From then on they are shown wherever your program shows its own, ``prometheus_client.make_asgi_app()`` say, and at
    ``/metrics`` of ``standfast serve``. What each of them means: *Metrics* in the reference.

    Args:
        registry: Where it is registered, by default the one that ``prometheus-client`` shows.

    Raises:
        MissingExtraError: ``pip install standfast[metrics]``.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__()
        try:
            from prometheus_client import REGISTRY, exposition, metrics_core  # noqa: PLC0415 -- it comes with an extra
        except ModuleNotFoundError as problem:
            raise MissingExtraError("metrics for Prometheus", "standfast[metrics]") from problem
        self._exposition: Final[Any] = exposition
        self._core: Final[Any] = metrics_core
        self.registry: Final[CollectorRegistry] = REGISTRY if registry is None else registry
        self.registry.register(self)

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """Return everything in the registry as Prometheus reads it, and its media type.

        Args:
            accept: The header of the scrape that says which forms it takes.
        """
        await self.refresh()
        encode, media_type = self._exposition.choose_encoder(accept)
        return encode(self.registry), media_type

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without numbers: what ``prometheus-client`` asks for when they are registered."""
        return [self._family(each) for each in INSTRUMENTS]

    def collect(self) -> Iterator[Metric]:
        """Return the metrics: what ``prometheus-client`` asks for at each scrape."""
        self.add_up()
        for instrument, counter in self.counters.items():
            family = self._family(instrument)
            for labels, value in counter.read():
                family.add_metric(labels, value)
            yield family
        for instrument, histogram in self.histograms.items():
            family = self._family(instrument)
            for labels, counts, total in histogram.read():
                family.add_metric(labels, _cumulated(instrument.bounds, counts), total)
            yield family
        families = {each: self._family(each) for each in INSTRUMENTS if each.kind == "gauge"}
        for gauge in self.gauges():
            families[gauge.instrument].add_metric(gauge.labels, gauge.value)
        yield from families.values()

    def _family(self, instrument: Instrument) -> Any:  # noqa: ANN401 -- one of three classes of the library
        core = self._core
        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        make = kinds.get(instrument.kind, core.HistogramMetricFamily)
        return make(instrument.name, instrument.help, labels=instrument.labels)


def _cumulated(bounds: tuple[float, ...], counts: list[float]) -> list[tuple[str, float]]:
    """Return how many were below each bound, as Prometheus counts."""
    buckets: list[tuple[str, float]] = []
    number = 0.0
    for bound, count in zip((*map(repr, bounds), INFINITY), counts, strict=True):
        number += count
        buckets.append((bound, number))
    return buckets


@final
class OpenTelemetryMetrics(AttachedMetrics):
    """Metrics for OpenTelemetry: a hook whose instruments are those of a meter.

        metrics = sf.admin.OpenTelemetryMetrics()
        engine = sf.Engine("sqlite:///jobs.db", workflows=[fulfil], hooks=[metrics])

    They have the same names and labels as those of :class:`PrometheusMetrics`. Counters and gauges are read when they
    are exported. Histograms are recorded at once, which costs a few microseconds each.

    Args:
        meter_provider: Whose meter to use, by default the global one.

    Raises:
        MissingExtraError: ``pip install standfast[tracing]``.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        try:
            from opentelemetry import metrics as api  # noqa: PLC0415 -- it comes with an extra
        except ModuleNotFoundError as problem:
            raise MissingExtraError("metrics for OpenTelemetry", "standfast[tracing]") from problem
        meter = api.get_meter("standfast") if meter_provider is None else meter_provider.get_meter("standfast")
        self._observation: Final = api.Observation
        super().__init__(lambda each: _OtelHistogram(meter, each))
        for instrument in INSTRUMENTS:
            if instrument.kind == "counter":
                read = self._reader(instrument)
                meter.create_observable_counter(instrument.name, [read], description=instrument.help)
            elif instrument.kind == "gauge":
                read = self._gauge_reader(instrument)
                meter.create_observable_gauge(instrument.name, [read], description=instrument.help)

    def _reader(self, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        counter, make = self.counters[instrument], self._observation
        names = instrument.labels
        return lambda _: [make(value, dict(zip(names, labels, strict=True))) for labels, value in counter.read()]

    def _gauge_reader(self, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        make, names = self._observation, instrument.labels
        return lambda _: [
            make(each.value, dict(zip(names, each.labels, strict=True)))
            for each in self.gauges()
            if each.instrument is instrument
        ]


@final
class _OtelHistogram:
    """A histogram of OpenTelemetry that is used like ours."""

    def __init__(self, meter: Any, instrument: Instrument) -> None:  # noqa: ANN401 -- a meter of the API
        unit = "s" if instrument.name.endswith("_seconds") else "1"
        bounds = list(instrument.bounds)
        self._record: Final = meter.create_histogram(
            instrument.name, unit, instrument.help, explicit_bucket_boundaries_advisory=bounds
        ).record
        self._names: Final = instrument.labels
        self._known: Final[dict[Labels, dict[str, str]]] = {}

    def observe(self, labels: Labels, value: float) -> None:
        """Record a value."""
        known = self._known.get(labels)
        if known is None:
            if len(self._known) >= MOST_LABELS:
                labels = (OTHER,) * len(self._names)
            known = self._known.setdefault(labels, dict(zip(self._names, labels, strict=True)))
        self._record(value, known)
