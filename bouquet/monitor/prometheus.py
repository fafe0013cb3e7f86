"""A run's status as metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bouquet.common.task.score import Score
from bouquet.common.texts import ENDLESS
from bouquet.server.record.gains import ALONE, OWN, RECEIVED
from bouquet.server.record.status import FAILED, FINISHED, STOPPED, TESTING, TRAINING, WAITING

STATES = (WAITING, TRAINING, TESTING, FINISHED, FAILED, STOPPED)
OF_RUN = (
    ("bouquet_round", "The round in hand.", "round"),
    ("bouquet_rounds", "Rounds that the run is to have.", "rounds"),
    ("bouquet_rounds_completed", "Rounds that have ended.", "completed"),
    ("bouquet_run_seconds", "Seconds that the rounds took.", "seconds"),
    ("bouquet_time_left_seconds", "Seconds that the rest may take.", "time_left"),
    ("bouquet_run_updated_seconds", "When the server last said something.", "updated"),
    ("bouquet_loss", "Mean training loss of the models of a round.", "loss"),
    ("bouquet_clusters", "Number of clusters.", "clusters"),
)
OF_DEVICES = (
    ("bouquet_device_connected", "1 while the device is connected.", "connected"),
    ("bouquet_device_expected", "1 for a device that should be there.", "expected"),
    ("bouquet_device_last_seen_seconds", "When it was last heard of.", "last_seen"),
    ("bouquet_device_round", "The last round that it replied in.", "round"),
    ("bouquet_device_samples", "Samples that it trains on.", "samples"),
)
MODELS = {OWN: "in_use", ALONE: "alone", RECEIVED: "received"}  # that a device compares: values of the label


class StatusCollector(Collector):
    """The metrics of one status, as `bouquet.monitor.status.collect` gives it; what is not known is left out."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self.run = status["run"]
        self.devices = status["devices"]
        self.score = Score.in_record(self.run)
        self._warnings = len(self.run["warnings"])

    def collect(self) -> Iterable[Metric]:
        """Of the run, then of the devices."""
        run = self.run
        state = GaugeMetricFamily("bouquet_run_state", "1 for the state that the run is in.", labels=["run", "state"])
        for name in STATES:
            state.add_metric([run["name"], name], float(run["state"] == name))
        yield state
        of_run = {**run, "rounds": run["rounds"] if run["rounds"] < ENDLESS else None}
        for name, what, key in OF_RUN:
            yield self._family(name, what, {(): of_run[key]})
        yield self._family(
            "bouquet_warnings", "What is wrong with the run now; bouquet status says it.", {(): self._warnings}
        )
        yield self._scores("bouquet_score", "Mean over the devices", {(): run[self.score.key]})
        yield self._scores(
            "bouquet_cluster_score", "Mean over the devices of a cluster", self._of_clusters(), "cluster"
        )
        for name, what, key in OF_DEVICES:
            yield self._family(name, what, {(device["name"],): device[key] for device in self.devices}, "device")
        scores = {(device["name"],): device[self.score.key] for device in self.devices}
        yield self._scores("bouquet_device_score", "Of the model that the device was sent", scores, "device")
        compared = "What a device that compares has in use, would have alone, and was sent"
        yield self._scores("bouquet_device_compared_score", compared, self._compared(), "device", "model")
        resting = {(d["name"], said["reason"]): said["until"] for d in self.devices if (said := d.get("not_now"))}
        what = "When a device is asked again whose owner does not let it work now."
        yield self._family("bouquet_device_not_now_until_seconds", what, resting, "device", "reason")
        failures = CounterMetricFamily("bouquet_device_failures", "Rounds that it failed in.", labels=["run", "device"])
        traffic = CounterMetricFamily(
            "bouquet_device_bytes", "Payload bytes.", labels=["run", "device", "direction"], unit="bytes"
        )
        for device in self.devices:
            failures.add_metric([run["name"], device["name"]], device["failures"])
            for direction in ("up", "down"):
                traffic.add_metric([run["name"], device["name"], direction], device[f"bytes_{direction}"])
        yield failures
        yield traffic

    def _family(self, name: str, what: str, values: Mapping[tuple[Any, ...], float | None], *labels: str) -> Metric:
        family = GaugeMetricFamily(name, what, labels=["run", *labels])
        for whose, value in values.items():
            if value is not None:
                family.add_metric([self.run["name"], *whose], float(value))
        return family

    def _scores(self, name: str, of: str, values: Mapping[tuple[Any, ...], float | None], *labels: str) -> Metric:
        unit = f" ({self.score.unit})" if self.score.unit else ""
        what = f"{of}: the task's score, here the {self.score.label}{unit}."
        return self._family(name, what, {(*whose, self.score.key): v for whose, v in values.items()}, *labels, "score")

    def _compared(self) -> dict[tuple[Any, ...], float]:
        """Three for each device at most, whatever it reports."""
        return {
            (device["name"], MODELS[name]): value
            for device in self.devices
            for name, value in (device.get("beside") or {}).items()
            if name in MODELS
        }

    def _of_clusters(self) -> dict[tuple[Any, ...], float]:
        found: dict[int, list[float]] = {}
        for device in self.devices:
            if device["cluster"] is not None and device[self.score.key] is not None:
                found.setdefault(device["cluster"], []).append(device[self.score.key])
        return {(str(cluster),): sum(values) / len(values) for cluster, values in sorted(found.items())}


def metrics_text(status: Mapping[str, Any]) -> bytes:
    """The metrics in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status))
    return generate_latest(registry)
