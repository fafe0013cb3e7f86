"""``bouquet demo``: a whole federation on loopback, real processes over gRPC, in about a minute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bouquet.client.agent.settings import DeviceSettings
from bouquet.client.node_config import NUM_PARTITIONS, PARTITION_ID, STATE_DIR, THREADS
from bouquet.client.trust.policy import ANY_PROCEDURE, CodeTrust
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.system.locks import locked
from bouquet.common.system.ports import free_port
from bouquet.common.system.processes import ending_in_order
from bouquet.common.task.score import Score
from bouquet.common.task.task import task_of
from bouquet.experiments.report.run_report import report_line
from bouquet.experiments.report.units import human_bytes
from bouquet.experiments.simulation.run import check, simulate
from bouquet.federation.demo_sensors import FORECAST, write_tables
from bouquet.federation.devices import local_devices
from bouquet.federation.run import check_folder, clear_service, do_run
from bouquet.monitor.round_table import RoundTable, print_summary
from bouquet.server.initial_model.torch_model import starting_point
from bouquet.server.record.reader import run_title
from bouquet.server.run_folder import SINGLE_MODEL, STATE_FOLDER
from bouquet.server.service.running import serving

DEMO = {
    "run.name": "demo",
    "run.rounds": 5,
    "data.dataset": "digits",
    "data.partition": "rotated",
    "data.clients": 6,
    "data.groups": 3,
    "strategy.name": "fesem",
    "strategy.num_clusters": 3,
    # Larger steps than the default ones: it has five rounds.
    "train.learning_rate": 0.1,
    "train.max_gradient_norm": None,
    "server.round_timeout": 120.0,
    "server.wait_for_clients": 120.0,
}


def run_demo(settings: Settings, folder: Path, console: Console) -> None:
    """Start a server and its devices, train, compare with one global model, and end everything."""
    check_folder(folder, settings, resume=False)
    if settings.task.kind == FORECAST["task.kind"] and not settings.data.data_dir:
        write_tables(folder / "tables", settings.run.seed, settings.data.clients)
        settings = settings.with_overrides({"data.data_dir": str((folder / "tables").absolute())})
    settings = settings.with_overrides({"server.min_clients": settings.data.clients})
    clients = settings.data.clients
    address = f"127.0.0.1:{free_port()}"
    console.print(f"Starting a server and {clients} devices on {address} (gRPC) …")

    def device(part: int) -> DeviceSettings:
        state = (folder / STATE_FOLDER / f"device-{part}").absolute()
        config: Mapping[str, Any] = {PARTITION_ID: part, NUM_PARTITIONS: clients, STATE_DIR: str(state), THREADS: 1}
        return DeviceSettings(address, state, config, insecure=True, trust=_own_code(settings))

    with (
        locked(folder, "the run folder", "Choose another --out."),
        ending_in_order(),
        local_devices([device(part) for part in range(clients)]),
    ):
        check(settings)
        with (
            serving(address, clear_service(folder)) as grid,
            RoundTable(console, settings.run.rounds, run_title(settings), task_of(settings).score) as table,
        ):
            summary = do_run(grid, settings, folder, False, starting_point(settings), follow=table, show=table.status)
        console.print("Ending all processes …")
    single = single_model(settings, folder / SINGLE_MODEL)
    score = task_of(settings).score
    console.print(devices_table(summary, single))
    print_summary(console, summary)
    console.print(
        f"A single global model (fedavg, same data and rounds, simulated): {score.label} "
        f"{score.text(single[score.of('macro')])}, "
        f"{human_bytes(single['bytes_down'])} down, {human_bytes(single['bytes_up'])} up."
    )
    console.print(report_line(folder), soft_wrap=True)


def _own_code(settings: Settings) -> CodeTrust:
    """Server and devices are the same person's: what the settings name of their own may run on both."""
    data = {settings.data.dataset, settings.data.partition}
    return CodeTrust(
        models=frozenset(name for name in (settings.model.name, settings.task.kind) if ":" in name),
        data=frozenset(name for name in data if ":" in name),
        procedures=frozenset({ANY_PROCEDURE}),
    )


def single_model(settings: Settings, folder: Path) -> dict[str, Any]:
    """The same devices with one model for all, FedAvg, simulated in this process."""
    sections = settings.model_dump()
    sections["strategy"] = {"name": "fedavg"}
    sections["simulation"]["engine"] = "inline"
    return simulate(Settings.model_validate(sections), folder)


def devices_table(summary: Mapping[str, Any], single: Mapping[str, Any]) -> Table:
    """Each device: its true group, the cluster it was found to be in, and its score with either model."""
    score = Score.in_record(summary)
    table = Table(title="Clusters found", title_justify="left")
    for column in (
        "device",
        "true group",
        "cluster",
        f"{score.title}, {summary['strategy']}",
        f"{score.label}, single",
    ):
        table.add_column(column, justify="left" if column == "device" else "right")
    groups = summary["groups"] or {}
    ours, theirs = (one[score.of("by_client")] for one in (summary, single))
    order = sorted(ours, key=lambda c: (summary["assignment"].get(c, -1), c))
    for client in order:
        table.add_row(
            client,
            str(groups.get(client, "–")),
            str(summary["assignment"].get(client, "–")),
            score.number(ours[client]),
            score.number(theirs[client]),
        )
    return table


def unused_folder(wanted: Path) -> Path:
    """The folder itself, or the first of ``demo-2``, ``demo-3`` … that is not there."""
    for number in range(1, 1000):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        if not folder.exists():
            return folder
    raise BouquetError(f"There are a thousand folders like {wanted} already; remove some.")
