"""The commands about models: which there are, using one, and going back to one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bouquet.commands.options import Strict
from bouquet.common.errors import BouquetError
from bouquet.common.task.score import Score
from bouquet.common.texts import printable

if TYPE_CHECKING:
    from bouquet.models.kept import KeptModel

StateDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="State folder of this device's client; bouquet-state by default.")
]
Run = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Instead, on the server: the folder of a run that has ended.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-model",
        metavar="PACKAGE.MODULE:FACTORY",
        help="A model, task or data set of your own that the folder names: its code is run.",
    ),
]
Cluster = Annotated[int | None, typer.Option(min=0, help="With --run: the cluster whose model to use.")]


def predict(
    paths: Annotated[list[Path], typer.Argument(metavar="IMAGE…")],
    state_dir: StateDir = None,
    run: Run = None,
    cluster: Cluster = None,
    allow_model: Allow = None,
    top: Annotated[int, typer.Option(min=1, help="So many classes for each, the likeliest first.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    strict: Strict = False,
) -> None:
    """Say what this device's own model sees in images, folders of them, tables or .npz. No server is needed.

    It answers with what the fleet has in use, from the first round on. What cannot be read is named,
    the others are predicted all the same, and the exit status is 1. Where samples have labels, in folders named
    like the classes, as y of an .npz or in a table's target column, the score follows, with its name and unit. Over
    samples that the device has trained on it is no test.
    """
    from bouquet.models.kept import clusters_of
    from bouquet.models.predict import cluster_by_look, score_text
    from bouquet.models.predict import predict as predictions

    if run is not None and cluster is None and state_dir is None and len(clusters_of(run)) > 1:
        cluster, why = cluster_by_look(run, paths, allow_model or ())
        _say(why, err=True)
    kept, told = _model(state_dir, run, cluster, allow_model or ()), []
    if never := kept.card.untrained:
        _say(f"This device never trained on {', '.join(never)}: what shows one is taken for another.", err=True)
    for prediction in predictions(kept, paths, top, strict):
        told.append(prediction)
        for note in prediction.notes:
            _say(note, err=True)
        _say(prediction.to_json() if json else prediction.text(), err=bool(prediction.error) and not json)
    if said := score_text(kept, paths, told, strict):
        _say(said, err=True)
    if any(prediction.error for prediction in told):
        raise typer.Exit(1)


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.onnx|FILE.pt")],
    state_dir: StateDir = None,
    run: Run = None,
    cluster: Cluster = None,
    allow_model: Allow = None,
) -> None:
    """Write this device's own model as ONNX or TorchScript, for a program without Python.

    Class names, input shape and preparation of images go into the file. ONNX needs the packages onnx and onnxscript
    (the extra 'export').
    """
    from bouquet.models.export import export as write

    kept = _model(state_dir, run, cluster, allow_model or ())
    write(kept, file)
    what = f"{len(kept.card.classes)} classes" if kept.card.classes else ", ".join(kept.card.outputs)
    _say(f"written  {file} ({kept.card.model.name}, {what}, from {kept.origin})")


def rollback(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]")] = None,
    cluster: Annotated[int | None, typer.Option(min=0, help="The cluster of the run to roll back.")] = None,
    to: Annotated[
        str | None, typer.Option(metavar="VERSION", help="A version of bouquet models; the last but one by default.")
    ] = None,
    state_dir: StateDir = None,
) -> None:
    """Have this device, or a cluster of a run, use the model before again.

    A device keeps the two before the one in use, and goes back by itself: no server is needed, and training goes on as
    it is. It stays until a newer one is better than both.

    On the server, RUN and --cluster name a cluster. It begins its next round with the version.
    """
    if run is not None or cluster is not None or to is not None:
        from bouquet.monitor.status import collect
        from bouquet.server.record.overview import is_alive
        from bouquet.server.run.rollback import ask_to_roll_back

        if run is None or cluster is None or state_dir is not None:
            raise BouquetError("A cluster is rolled back by RUN and --cluster, and maybe --to, without --state-dir.")
        status = collect(run)["run"]  # which says so where it is no run
        version = ask_to_roll_back(run, cluster, to)
        later = "" if is_alive(status) else f"; the run is {status['state']}: that is when it goes on (--resume)"
        return _say(f"asked    cluster {cluster} of {run} to begin its next round with version {version.name}{later}")
    from bouquet.models.kept import roll_back

    which = roll_back(state_dir or Path("bouquet-state"))
    _say(f"in use   the model of {which} again, until a newer one is better than both")


def models(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]")] = None,
    json: Annotated[bool, typer.Option("--json", help="For a program, with whole digests.")] = False,
) -> None:
    """List the models that clusters of a run, or the newest, were sent: when, with which score, and where in use."""
    from json import dumps

    from bouquet.monitor.status import collect, newest_run
    from bouquet.server.record.versions import listed

    about = collect(run := run or newest_run())["run"]
    versions, score = listed(run), Score.in_record(about)
    if json:
        return _say(dumps(versions, indent=2))
    if not versions:
        _say(f"{run} keeps none: no round has begun, or it is a simulation, or the models are on devices.", err=True)
    for one in versions:
        value, devices = one[score.key], one["devices"]
        shown = "–" if value is None else score.number(value)
        count = "damaged" if devices is None else f"{len(devices):>3} devices"
        row = (f"{one['version']:>9}", one["digest"][:12], f"{shown:>8}", count)
        _say("  ".join((*row, f"in use on {', '.join(one['in_use'])}" if one["in_use"] else "")).rstrip())


def _say(text: str, err: bool = False) -> None:
    """Print it; names of classes and columns are those that a server gave, or a file."""
    typer.echo(printable(text), err=err)


def _model(state_dir: Path | None, run: Path | None, cluster: int | None, allowed: Collection[str]) -> KeptModel:
    from bouquet.models.kept import cluster_model, clusters_of, device_model

    if run is None:
        if cluster is not None:
            raise BouquetError("--cluster chooses a model of a run: give --run, too.")
        return device_model(state_dir or Path("bouquet-state"), allowed)
    if state_dir is not None:
        raise BouquetError("--run names a run on the server, --state-dir what a device keeps: give one of them.")
    if cluster is None and len(there := clusters_of(run)) > 1:
        raise BouquetError(f"The run {run} has clusters {', '.join(map(str, there))}: choose one by --cluster.")
    return cluster_model(run, cluster or 0, allowed)
