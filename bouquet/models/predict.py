"""``bouquet predict``: what a kept model says of images or samples, without a server."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.client.data.arrays import check_samples, check_targets
from bouquet.client.data.cache import kept_data
from bouquet.client.data.table import Samples, samples_of
from bouquet.client.data.table_reader import Table, read_table
from bouquet.client.data.table_text import table_files
from bouquet.common.data.class_folders import class_name
from bouquet.common.data.images import IMAGE_MODES, IMAGE_SUFFIXES, image_files, read_image
from bouquet.common.data.left_out import LeftOut
from bouquet.common.data.looks import Looks, look_of, projected
from bouquet.common.data.readers import read_npz
from bouquet.common.errors import BouquetError
from bouquet.common.model.card import ModelCard
from bouquet.common.settings.sections import TableSettings
from bouquet.models.kept import KeptModel, Scaled, run_card
from bouquet.models.odd import OddRows, reconstructed, row_errors
from bouquet.server.run_folder import LOOKS

BATCH = 64  # samples that are read and held in memory at once
FEWEST, SURE = 8, 0.9  # samples to choose a cluster by; the share of devices that must come into theirs so


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of a sample, the likeliest first; or why there are none.

    ``wrong_by`` is the task's error, where the sample has a label. ``file``, ``line`` and ``time`` are a row's, which
    ``name`` has together. ``notes`` are on the whole table: what of it is left out, and why.
    """

    name: str
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""
    numbers: tuple[tuple[str, float], ...] = ()
    unit: str = ""
    wrong_by: float | None = None
    file: str = ""
    line: int | None = None
    time: str = ""
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """A line for a person."""
        text = ", ".join(f"{name} {probability:.3f}" for name, probability in self.classes)
        text = text or ", ".join(
            f"{name} {_written_number(value)} {self.unit}".rstrip() for name, value in self.numbers
        )
        return f"{self.name}: {self.error or text}"

    def to_json(self) -> str:
        """A line for a program."""
        if self.error:
            return json.dumps({"file": self.name, "error": self.error})
        of_row = {"line": self.line, "time": self.time}
        where = {"file": self.file or self.name, **{key: value for key, value in of_row.items() if value}}
        if self.numbers:
            return json.dumps({**where, "predictions": dict(self.numbers), "unit": self.unit})
        classes = [{"class": name, "probability": round(probability, 6)} for name, probability in self.classes]
        return json.dumps({**where, "predictions": classes})


@dataclass(frozen=True)
class _Sample:
    name: str
    raw: NDArray[Any] | None = None  # (*input_shape)
    error: str = ""
    truth: int | NDArray[Any] | None = None  # the label, or the numbers (targets,)


def predict(kept: KeptModel, paths: Sequence[Path], top: int, strict: bool = False) -> Iterator[Prediction]:
    """The ``top`` classes, or the numbers, of every sample of the files and folders, in order.

    Of a table to forecast from, what comes after its newest rows; `score_text` says how good that was before. Gaps are
    filled, or rows and windows left out, as in training; with ``strict`` rows that do not fit are an error.

    A folder stands for its ``data.npz``, or else for all images in it, as it does in training. What cannot be read is
    a prediction with an error; the others go on.
    """
    if kept.card.table.inputs:
        for path in paths:
            yield from _of_table(kept, path, top, strict)
        return
    samples = _samples(kept.card, paths)
    while batch := list(islice(samples, BATCH)):
        yield from _predict_batch(kept, batch, top)


def cluster_by_look(run: Path, paths: Sequence[Path], allowed: Collection[str] = ()) -> tuple[int, str]:
    """The cluster of a run whose devices' samples look like all that are given, and how sure that is, in words.

    Raises `BouquetError` where the run does not know it well enough, or the samples are too few.
    """
    card = run_card(run, allowed)
    try:
        looks = Looks.from_json((run / LOOKS).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, BouquetError):
        raise BouquetError(
            f"The run {run} does not know what its clusters look like (models/looks.json): choose one by --cluster."
        ) from None
    how = f"by that, {looks.right} of {looks.of} devices come into theirs"
    if looks.right < SURE * looks.of:
        raise BouquetError(f"What samples look like does not tell this run's clusters: {how}. Choose by --cluster.")
    given = [projected(card.inputs(sample.raw[None])) for sample in _samples(card, paths) if sample.raw is not None]
    if len(given) < FEWEST:
        raise BouquetError(
            f"A cluster is chosen by what at least {FEWEST} samples look like, and {len(given)} can be read: give "
            "more, or --cluster."
        )
    cluster = looks.nearest(look_of(np.concatenate(given)))
    return cluster, f"cluster {cluster} of {len(looks.means)}, by what the images look like: {how}"


def score_text(kept: KeptModel, paths: Sequence[Path], predictions: Sequence[Prediction], strict: bool = False) -> str:
    """The score over what has a label: photos in a folder of a class, an npz with y; empty where nothing has one.

    Of tables it is over all rows or windows whose targets are in them.
    """
    if kept.task.reconstructs:
        return ""
    if kept.card.table.inputs:
        errors = _table_errors(kept, paths, strict)
    else:
        errors = np.array([one.wrong_by for one in predictions if one.wrong_by is not None])
    if not len(errors):
        return ""
    score, what = kept.task.score, "a target" if kept.card.table.inputs else "a label"
    return f"{score.label} {score.text(kept.task.value(float(errors.mean())))}, over {len(errors)} samples with {what}"


def _table_errors(kept: KeptModel, paths: Sequence[Path], strict: bool) -> NDArray[Any]:
    errors = []
    for path in paths:
        try:
            samples = _table(kept, path, True, strict)
        except BouquetError:
            continue  # without the column, or said by `predict`
        outputs = np.concatenate(list(_outputs(kept, samples)) or [np.empty((0, len(kept.card.outputs)))])
        errors.append(kept.task.errors(torch.as_tensor(outputs), torch.as_tensor(samples.y)).numpy())
    return np.concatenate(errors) if errors else np.empty(0)


def _table(kept: KeptModel, path: Path, with_targets: bool, strict: bool) -> Samples:
    """The samples of a table, all of it: ``table.until`` is of what was trained on."""
    about, is_forecast = kept.card.table.model_copy(update={"until": ""}), kept.task.is_forecast
    table = read_table(path, about, kept.card.classes if with_targets else (), with_targets, strict)
    if is_forecast and not with_targets:
        table = replace(table, targets=np.full((len(table.inputs), len(about.targets)), np.nan))
    if kept.task.reconstructs:
        return samples_of(table, about.model_copy(update={"horizon": 0}), is_forecast)
    samples = samples_of(table, about, is_forecast, needs_targets=with_targets)
    if is_forecast and not with_targets and len(samples.x):
        samples = replace(samples, notes=samples.notes + _newest_note(table, samples, about))
    return samples


def _newest_note(table: Table, samples: Samples, about: TableSettings) -> tuple[str, ...]:
    """A word where the newest window is not made of the newest rows."""
    assert table.times is not None
    assert samples.times is not None
    assert samples.starts is not None
    step = (samples.times[-1] - samples.starts[-1]) / (about.history - 1 + about.horizon)
    last = samples.times[-1] - about.horizon * step
    if table.times[-1] - last < step / 2:
        return ()
    return (f"The newest rows, after {_written(last)}, have gaps: what is foretold is seen from there.",)


def _written_number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"  # a meter's level has all of its digits


def _rounded(value: float) -> float:
    return float(f"{value:.6g}") if abs(value) < 1e6 else round(value, 2)


def _written(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _outputs(kept: KeptModel, samples: Samples) -> Iterator[NDArray[Any]]:
    x = samples.x.astype(np.float32 if kept.card.scaling is None else np.float64)
    run = kept.probabilities if kept.task.has_classes else kept.numbers
    return (run(x[i : i + BATCH]) for i in range(0, len(x), BATCH))


def _of_table(kept: KeptModel, path: Path, top: int, strict: bool) -> Iterator[Prediction]:
    try:
        samples = _table(kept, path, False, strict)
        if not len(samples.x):
            raise BouquetError(f"{path} has no row or window without gaps. {' '.join(samples.notes)}")
    except BouquetError as error:
        yield Prediction(str(path), error=str(error))
        return
    if kept.task.reconstructs:
        yield from _odd(kept, path, samples)
        return
    if kept.task.is_forecast:
        samples = replace(samples, x=samples.x[-1:], times=None if samples.times is None else samples.times[-1:])
    files, row, notes = table_files(path), 0, samples.notes
    for outputs in _outputs(kept, samples):
        for values in outputs:
            file, line, time = str(path), None, ""
            if samples.lines is not None and samples.files is not None:
                file, line = str(files[samples.files[row]]), int(samples.lines[row])
            if samples.times is not None:
                time = _written(samples.times[row])
            name = file + ("" if line is None else f", line {line}") + (f" {time}" if time else "")
            yield replace(_told(kept, name, values, top), file=file, line=line, time=time, notes=notes)
            row, notes = row + 1, ()


def _odd(kept: KeptModel, path: Path, samples: Samples) -> Iterator[Prediction]:
    """The odd rows of a table, those next to each other together, with the column that is odd most of all."""
    card = kept.card
    assert card.scaling is not None
    assert samples.times is not None
    assert samples.starts is not None
    windows = card.scaling.inputs(samples.x)
    first, errors = row_errors(windows, np.concatenate(list(_outputs(kept, samples))))
    trained = None if kept.data is None else kept_data(kept.data)
    usual = OddRows.of(errors if trained is None else _errors_in_training(kept, trained.train_x))
    step = (samples.times[0] - samples.starts[0]) / max(1, card.table.history - 1)
    stretches = list(usual.stretches(errors))
    notes = (
        *samples.notes,
        f"{len(stretches)} stretches are odd, {sum(s.last - s.first + 1 for s in stretches)} rows.",
    )
    for odd in stretches:
        window = [max(0, int(np.searchsorted(first, row, "right")) - 1) for row in (odd.first, odd.last)]
        times = [samples.starts[w] + step * (r - first[w]) for w, r in zip(window, (odd.first, odd.last), strict=True)]
        time = "/".join(dict.fromkeys(_written(one) for one in times))  # an interval of ISO 8601
        most_unusual = ((card.table.words[odd.column], float(f"{odd.times:.3g}")),)
        unit = "times the threshold"
        yield Prediction(f"{path} {time}", numbers=most_unusual, unit=unit, file=str(path), time=time, notes=notes)
        notes = ()
    if not stretches:
        yield Prediction(f"{path}", numbers=(("odd rows", 0.0),), file=str(path), notes=notes)


def _errors_in_training(kept: KeptModel, windows: NDArray[Any]) -> NDArray[Any]:
    """Those of what the device trained on, which is scaled already."""
    model = kept.model.model if isinstance(kept.model, Scaled) else kept.model
    with torch.inference_mode():
        outputs = reconstructed(windows, lambda x: model(torch.as_tensor(np.ascontiguousarray(x))).numpy())
    return row_errors(windows, outputs)[1]


def _predict_batch(kept: KeptModel, batch: Sequence[_Sample], top: int) -> Iterator[Prediction]:
    # Each is prepared for itself: a batch may hold bytes and floats.
    inputs = [kept.card.inputs(sample.raw[None]) for sample in batch if sample.raw is not None]
    run = kept.probabilities if kept.task.has_classes else kept.numbers
    rows = iter(run(np.concatenate(inputs)) if inputs else ())
    for sample in batch:
        if sample.raw is None:
            yield Prediction(sample.name, error=sample.error)
            continue
        row = next(rows)
        prediction = _told(kept, sample.name, row, top)
        if sample.truth is not None:
            truth = torch.as_tensor(np.asarray(sample.truth)[None])
            prediction = replace(prediction, wrong_by=float(kept.task.errors(torch.as_tensor(row[None]), truth)))
        yield prediction


def _told(kept: KeptModel, name: str, values: NDArray[Any], top: int) -> Prediction:
    card = kept.card
    if kept.task.has_classes:
        order = np.argsort(-values, kind="stable")[:top]
        return Prediction(name, tuple((card.classes[k], float(values[k])) for k in order))
    pairs = zip(card.outputs, values, strict=True)
    return Prediction(name, numbers=tuple((c, _rounded(float(v))) for c, v in pairs), unit=card.task.unit)


def _samples(card: ModelCard, paths: Iterable[Path]) -> Iterator[_Sample]:
    for path in paths:
        try:
            yield from _samples_of(path, card)
        except BouquetError as error:
            yield _Sample(str(path), error=str(error))


def _samples_of(path: Path, card: ModelCard) -> Iterator[_Sample]:
    shape, classes = card.input_shape, card.classes
    if path.is_dir() and (path / "data.npz").is_file():
        path = path / "data.npz"
    if path.suffix == ".npz":
        arrays = read_npz(path, ("x",))
        x, fit = check_samples(arrays, "x", shape, path, LeftOut("samples"))
        truths: Iterable[Any] = [None] * len(x)
        if "y" in arrays:
            truths = check_targets(arrays, "y", classes, card.outputs, fit)
        for index, (raw, truth) in enumerate(zip(x, truths, strict=True)):
            error = fit.reasons.get(index, "")
            yield _Sample(f"{path}[{index}]", None if error else raw, error, truth)
        return
    if not path.exists():
        raise BouquetError(f"There is no file or folder {path}.")
    if len(shape) != 3 or shape[0] not in IMAGE_MODES:
        raise BouquetError(f"{path}: this model takes samples of shape {shape}, not images; give an .npz with x.")
    files = image_files(path) if path.is_dir() else [path]
    if not files:
        raise BouquetError(f"The folder {path} holds no images ({', '.join(IMAGE_SUFFIXES)}) and no data.npz.")
    for file in files:
        try:
            name = class_name(file.parent.name)
            named = path.is_dir() and name in classes
            yield _Sample(str(file), read_image(file, shape), truth=classes.index(name) if named else None)
        except BouquetError as error:
            yield _Sample(str(file), error=str(error))
