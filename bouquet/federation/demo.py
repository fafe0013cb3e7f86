"""``bouquet demo``: a whole federation on loopback, real processes over gRPC, in about a minute."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

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
from bouquet.experiments.report.devices import difference
from bouquet.experiments.report.run_report import report_line
from bouquet.experiments.report.units import human_bytes, human_seconds
from bouquet.experiments.simulation.run import check, simulate
from bouquet.federation.devices import local_devices
from bouquet.federation.run import check_folder, clear_service, do_run, live_page
from bouquet.monitor.round_table import RoundTable
from bouquet.server.initial_model.torch_model import starting_point
from bouquet.server.record.gains import OWN, cells, sentence
from bouquet.server.record.reader import natural_order, run_title, untested
from bouquet.server.run_folder import SINGLE_MODEL, STATE_FOLDER
from bouquet.server.service.running import serving

# The method and its training are as everywhere, without a setting. Of ninety digits one device can learn less than two
# together.
DEMO = {
    "run.name": "demo",
    "run.rounds": 10,
    "data.dataset": "digits",
    "data.partition": "rotated",
    "data.clients": 6,
    "data.groups": 3,
    "data.test_fraction": 0.7,
}


def run_demo(settings: Settings, folder: Path, console: Console, web: str | None = None) -> None:
    """Start a server and its devices, train, compare with one global model, and end everything.

    With ``web`` the live page is there, and stays until Ctrl-C.
    """
    began = time.monotonic()
    check_folder(folder, settings, resume=False)
    settings = settings.with_overrides({"server.min_clients": settings.data.clients})
    clients = settings.data.clients
    address = f"127.0.0.1:{free_port()}"

    def device(part: int) -> DeviceSettings:
        state = (folder / STATE_FOLDER / f"device-{part}").absolute()
        config: Mapping[str, Any] = {PARTITION_ID: part, NUM_PARTITIONS: clients, STATE_DIR: str(state), THREADS: 1}
        return DeviceSettings(address, state, config, insecure=True, trust=_own_code(settings))

    with live_page(lambda: folder, web, None, console, stays=True):
        console.print(f"Starting a server and {clients} devices on {address} (gRPC) …")
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
                start = starting_point(settings)
                summary = do_run(grid, settings, folder, False, start, follow=table, show=table.status)
            console.print("Ending all processes …")
        single = single_model(settings, folder / SINGLE_MODEL)
        print_outcome(console, summary, single)
        console.print(report_line(folder), soft_wrap=True)
        console.print(
            f"time     {human_seconds(time.monotonic() - began)}, of which {summary['seconds']:.1f} s of rounds"
        )


def _own_code(settings: Settings) -> CodeTrust:
    """Server and devices are the same person's: what the settings name of their own may run on both."""
    return CodeTrust(
        models=frozenset(name for name in (settings.model.name, settings.task.kind) if ":" in name),
        data=frozenset(name for name in (settings.data.dataset,) if ":" in name),
        procedures=frozenset({ANY_PROCEDURE}),
    )


def single_model(settings: Settings, folder: Path) -> dict[str, Any]:
    """The same devices with one model for all, FedAvg, simulated in this process."""
    sections = settings.model_dump()
    sections["strategy"] = {"name": "fedavg"}
    sections["personal"] |= {"serve": "own", "compare": False}
    sections["simulation"]["engine"] = "inline"
    return simulate(Settings.model_validate(sections), folder)


def print_outcome(console: Console, summary: Mapping[str, Any], single: Mapping[str, Any]) -> None:
    """What each device has in use and would have alone, the clusters, and one global model beside them."""
    score, beside = Score.in_record(summary), summary.get("beside_by_client") or {}
    groups, assignment = summary["groups"] or {}, summary["assignment"]
    ours, theirs = (one[score.of("by_client")] for one in (summary, single))
    table = Table(title="In use against alone", title_justify="left")
    heads = ("device", "in use", "alone", "gain", "cluster", *(["kind"] if groups else ()), "one model")
    for head in heads:
        table.add_column(head, justify="left" if head == "device" else "right")
    for client in sorted(ours, key=lambda c: (assignment.get(c, -1), natural_order(c))):
        in_use, alone, _ = cells(beside.get(client) or {OWN: ours[client]}, score)
        kind = [str(groups.get(client, "–"))] if groups else []
        row = (client, in_use, alone, difference(beside.get(client) or {}, score), str(assignment.get(client, "–")))
        table.add_row(*row, *kind, score.number(theirs[client]))
    console.print(table)
    console.print(Text(sentence(beside, score), style="bold"), soft_wrap=True)
    text = f"clusters {summary['clusters']}"
    if summary["purity"] is not None:
        kinds = len(set(groups.values()))
        same = summary["purity"] == 1 and summary["clusters"] == kinds
        text += f", {'just' if same else 'for'} the {kinds} kinds of devices"
    console.print(text)
    console.print(
        f"One model for all devices (fedavg, same data and rounds, simulated): {score.label} "
        f"{score.text(single[score.of('macro')])}.",
        soft_wrap=True,
    )
    for line in (*untested(summary), *summary["warnings"]):
        console.print(Text(f"warning  {line}", style="yellow"), soft_wrap=True)
    down, up = human_bytes(summary["bytes_down"]), human_bytes(summary["bytes_up"])
    console.print(f"bytes    {down} down, {up} up")


def unused_folder(wanted: Path) -> Path:
    """The folder itself, or the first of ``demo-2``, ``demo-3`` … that is not there."""
    for number in range(1, 1000):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        if not folder.exists():
            return folder
    raise BouquetError(f"There are a thousand folders like {wanted} already; remove some.")
