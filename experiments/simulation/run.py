"""A federation simulated on one machine: the same ServerApp and ClientApp, without SuperLink and SuperNodes."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from bouquet.client.app import make_client_app
from bouquet.client.context import own_data
from bouquet.client.data.folder import client_folders
from bouquet.client.node_config import NUM_PARTITIONS, PARTITION_ID
from bouquet.common.errors import BouquetError, RunFailed
from bouquet.common.settings import Settings
from bouquet.common.settings.sections import OWN_DATA
from bouquet.common.system.locks import locked
from bouquet.common.system.resources import available_cores
from bouquet.common.wire.flower import SERVER_NODE
from bouquet.experiments.simulation.inline_grid import InlineGrid, app_handlers
from bouquet.experiments.simulation.own_data import one_client_a_folder
from bouquet.experiments.simulation.timed_grid import TimedGrid
from bouquet.server.app import make_server_app
from bouquet.server.initial_model.torch_model import starting_point
from bouquet.server.record.reader import untested
from bouquet.server.record.status import STOPPED, read_status
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.build import build_strategy
from bouquet.server.run.loop import Follow
from bouquet.server.run.stop import RunStopped
from bouquet.server.run_folder import STATE_FOLDER, SUMMARY
from bouquet.strategies.base.sampling import fewest_replies, sample_size

FIRST_NODE = SERVER_NODE + 1
_read: set[str] = set()  # settings of devices' own data that were found to fit
AT_ONCE = 64  # clients that the engine 'batched' trains together, at most


def simulate(
    settings: Settings,
    folder: Path | str,
    resume: bool = False,
    follow: Follow | None = None,
    grid: Callable[..., InlineGrid] | None = None,
) -> dict[str, Any]:
    """Run a federation of ``data.clients`` simulated devices and return its summary.

    With ``data.dataset = "own"`` there is a device for each folder in ``data.data_dir``, named like it. The run folder
    is left behind; what the devices kept is removed when the run ended well. ``grid`` is one's own in the place of
    `InlineGrid`, or with ``simulation.speeds`` of `TimedGrid`, for the engines in this process. Raises `BouquetError`
    for settings that do not fit each other or the data, before anything is written, and `RunFailed` where no device
    could be tested at the end: such a run has no figure to report.

    Examples
    --------
    >>> settings = bouquet.load_settings(None, ["data.clients=4", "run.rounds=2", "simulation.engine=inline"])
    >>> summary = bouquet.simulate(settings, folder / "run")
    >>> summary["clients"], 0 < summary["accuracy_macro"] <= 1
    (4, True)
    """
    settings, folder = one_client_a_folder(settings), Path(folder)
    check(settings, folder if resume else None)
    with locked(folder, "the run folder", "Another run writes there; give each a folder of its own."):
        server_app = make_server_app(settings, folder, resume, follow)
        client_app = make_client_app(settings, (folder / STATE_FOLDER).absolute())
        if settings.simulation.engine == "ray":
            _run_ray(settings, server_app, client_app)
        else:
            _run_inline(settings, server_app, client_app, grid)
    status = read_status(folder)
    if status.get("state") == STOPPED:
        raise RunStopped(status["reason"])
    summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    if not summary["clients"]:
        why = " ".join(untested(summary)[:1])
        raise RunFailed(f"No device could be tested after the last round; the models are in {folder}. {why}")
    shutil.rmtree(folder / STATE_FOLDER, ignore_errors=True)
    return summary


def check(settings: Settings, resumed: Path | None = None) -> None:
    """Build everything once, so that what does not fit is said before the run begins or goes on."""
    from bouquet.client.data.loading import part_of  # imports SciPy only for what it needs

    data = settings.data
    if settings.server.min_clients > data.clients:
        raise BouquetError(
            f"server.min_clients = {settings.server.min_clients} is more than data.clients = {data.clients}."
        )
    if settings.train.budget == "fleet" and not settings.simulation.speeds:
        raise BouquetError(
            "Setting train.budget = 'fleet' in a simulation needs simulation.speeds: of this machine all are one."
        )
    trained = sample_size(data.clients, settings.server.fraction_train, 1)
    if fewest_replies(settings.server.min_replies, trained) > trained:
        raise BouquetError(
            f"server.min_replies = {settings.server.min_replies}, but only {trained} of data.clients = {data.clients} "
            f"train in a round (server.fraction_train = {settings.server.fraction_train:g}): no round could change "
            "anything."
        )
    if resumed is not None:
        RunRecord(resumed).check_continues(settings)
    strategy = build_strategy(settings, starting_point(settings, resumed))
    if strategy.expected_clusters > data.clients:
        raise BouquetError(
            f"strategy.num_clusters = {strategy.expected_clusters} is more than data.clients = {data.clients}: take "
            "fewer, or 'auto' where the method finds their number."
        )
    if data.dataset == OWN_DATA:
        _check_folders(settings)
        return
    part_of(settings, 0)


def check_elsewhere(settings: Settings) -> None:
    """`check`, in a process that runs nothing itself: devices' own data are not kept in its memory."""
    check(settings)
    own_data.cache_clear()


def _check_folders(settings: Settings) -> None:
    """Read every client's folder, and name all those that cannot be read or hold too little.

    Once for the same data: the cells of a comparison differ in the method, most of them.
    """
    about = settings.model_dump_json(include={"data", "table", "task", "model"}) + str(settings.run.seed)
    if about in _read:
        return
    wrong = []
    for folder in client_folders(settings.data.data_dir):
        try:
            own_data(settings, str(folder))
        except BouquetError as error:
            wrong.append(f"client {folder.name!r}: {error}")
    if wrong:
        raise BouquetError(f"The data of {len(wrong)} of {settings.data.clients} clients do not fit: {' '.join(wrong)}")
    _read.add(about)


def _run_inline(
    settings: Settings, server_app: ServerApp, client_app: ClientApp, grid: Callable[..., InlineGrid] | None
) -> None:
    """Clients in this process: one after another, or their training batched."""
    clients, simulation = settings.data.clients, settings.simulation
    contexts = {
        FIRST_NODE + part: _context(FIRST_NODE + part, {PARTITION_ID: part, NUM_PARTITIONS: clients})
        for part in range(clients)
    }
    batch = None
    if simulation.engine == "batched":
        from bouquet.experiments.simulation.batched_engine import Batch  # imports PyTorch

        batch = Batch[Message | None](settings.train.threads or available_cores())
    handlers, at_once = app_handlers(client_app, contexts), AT_ONCE if batch else 1
    if simulation.speeds:
        made = (grid or TimedGrid)(handlers, simulation.speeds, simulation.links, batch, at_once)
    else:
        made = (grid or InlineGrid)(handlers, together=batch, at_once=at_once)
    server_app(made, _context(SERVER_NODE, {}))


def _context(node: int, config: dict[str, Any]) -> Context:
    return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})


def _run_ray(settings: Settings, server_app: ServerApp, client_app: ClientApp) -> None:
    """Clients in parallel on Flower's Ray engine."""
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray  # noqa: F401
        from flwr.simulation import run_simulation
    except ImportError:
        raise BouquetError(
            "Simulation on Ray needs the extra 'simulation' (pip install 'bouquet-fl[simulation]'); "
            "or take --set simulation.engine=inline."
        ) from None
    _start_ray()  # Flower takes a Ray that is there, and ends it
    run_simulation(
        server_app,
        client_app,
        num_supernodes=settings.data.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


def _start_ray() -> None:
    """Start Ray, on this machine alone.

    Its workers look for modules where this process does. Ray itself would have them look into the current folder first,
    where a client.py of the user's would take the place of Bouquet's; it does not where a job has a folder of its own.
    """
    import ray
    from ray.job_config import JobConfig

    class Elsewhere(JobConfig):  # type: ignore[misc, unused-ignore]
        """A job that is taken for one with a folder of its own."""

        def _runtime_env_has_working_dir(self) -> bool:
            return True

    ray.init(
        address="local",  # else Ray would wait for the one that was started here last, also where it is gone
        job_config=Elsewhere(),
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
        include_dashboard=False,
        # Ray gives a machine up, and with it all clients at once, when its daemon has not answered for a minute. One
        # that is the only machine has been busy or asleep: were it gone, nobody would be left to give it up.
        _system_config={"health_check_timeout_ms": 3_600_000},
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
