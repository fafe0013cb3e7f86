"""``bouquet export``: a kept model as one file for a runtime without Python.

ONNX for ONNX Runtime and its kin; TorchScript for libtorch, in C++. PyTorch has deprecated TorchScript, and still
writes it, because what takes its place (AOTInductor) compiles for one kind of processor. Either file holds the model's
description, and either is tried before it takes its name.
"""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import write_atomically
from bouquet.models.kept import KeptModel

DESCRIPTION = "bouquet.json"  # TorchScript's extra file, ONNX's metadata key
INPUT, OUTPUT = "x", "logits"
TOLERANCE = 1e-4  # largest difference of a logit, over the largest logit or 1

Run = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def export(kept: KeptModel, file: Path) -> None:
    """Write the model to ``file``, whose suffix says how: ``.onnx``, or ``.pt`` for TorchScript.

    It maps ``x`` (n, *input_shape) float32, prepared as the description says, to ``logits`` (n, classes). Raises
    `BouquetError` for another suffix, a missing package, or a model that does not give the same outputs once exported.
    """
    writers = {".onnx": _onnx, ".pt": _torchscript}
    if file.suffix not in writers:
        raise BouquetError(f"{file} ends in neither {' nor '.join(writers)}; the suffix says what to export.")
    if kept.task.reconstructs:
        raise BouquetError("A model of task.kind = 'anomaly' is not exported: bouquet predict says which rows are odd.")
    content, run = writers[file.suffix](kept)
    _check_same(kept, run, file.suffix)
    write_atomically(file, content)


def description(kept: KeptModel) -> str:
    """What a program that runs the exported model has to know, as JSON."""
    facts = {**kept.card.facts(), "input": INPUT, "output": OUTPUT}
    return json.dumps(facts, ensure_ascii=False)


def _onnx(kept: KeptModel) -> tuple[bytes, Run]:
    try:
        import onnx
        import onnxscript  # noqa: F401  what torch.onnx translates with
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        raise BouquetError(
            f"ONNX export needs {error.name}; run: {sys.executable} -m pip install onnx onnxscript"
        ) from None
    program = _translated(
        "ONNX",
        lambda: torch.onnx.export(
            _graph(kept), input_names=[INPUT], output_names=[OUTPUT], external_data=False, verbose=False
        ),
    )
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {DESCRIPTION: description(kept)})
    onnx.checker.check_model(proto)
    # Slow, but it comes with onnx: no runtime is needed on the machine that exports.
    evaluator = ReferenceEvaluator(proto)

    def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        outputs: Any = evaluator.run(None, {INPUT: x})
        return np.asarray(outputs[0])

    return proto.SerializeToString(), run


def _torchscript(kept: KeptModel) -> tuple[bytes, Run]:
    # The graph has no branches left, where tracing the model itself would freeze the one that was taken.
    example = torch.as_tensor(_samples(kept))
    traced = _translated("TorchScript", lambda: torch.jit.trace(_graph(kept).module(), example))
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(traced, buffer, _extra_files={DESCRIPTION: description(kept)})
        loaded = torch.jit.load(io.BytesIO(buffer.getvalue()))
    return buffer.getvalue(), lambda x: loaded(torch.as_tensor(x)).numpy()


def _translated(what: str, translate: Callable[[], Any]) -> Any:
    """What ``translate`` gives; what PyTorch says while it works is shown only where it fails."""
    said = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(said), redirect_stderr(said):
            warnings.simplefilter("ignore")
            return translate()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise BouquetError(
            f"PyTorch cannot translate this model to {what} ({type(error).__name__}: {reason}); try the other format."
        ) from error


def _graph(kept: KeptModel) -> torch.export.ExportedProgram:
    """The model as a graph, for any number of samples; it fails for a model whose path depends on values."""
    example = (torch.as_tensor(_samples(kept)),)
    return torch.export.export(kept.model, example, dynamic_shapes=({0: torch.export.Dim("n")},))


def _samples(kept: KeptModel, count: int = 2) -> NDArray[np.float32]:
    """Arbitrary inputs (count, *input_shape), the same every time."""
    shape = (count, *kept.card.input_shape)
    return np.random.default_rng(count).normal(size=shape).astype(np.float32)


def _check_same(kept: KeptModel, run: Run, suffix: str) -> None:
    """Raise `BouquetError` unless the exported model gives what the model gives, for another number of samples, too."""
    for count in (1, 3):
        x = _samples(kept, count)
        with torch.inference_mode():
            expected = kept.model(torch.as_tensor(x)).numpy()
        found = run(x)
        scale = max(1.0, float(np.abs(expected).max()))
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=0, atol=TOLERANCE * scale):
            raise BouquetError(
                f"The model exported as {suffix} gives other outputs than the model itself, so it was not written; "
                "try the other format."
            )
