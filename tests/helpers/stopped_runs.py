"""Runs that are stopped in their middle and gone on with, and what of a record is the same either way."""

import json

import pytest
from safetensors.numpy import load_file

from bouquet.experiments.simulation.run import simulate


class Stopped(Exception):
    pass


def stop_after(round_):
    """A `Follow` that ends the run after a round as if its process were killed."""

    def follow(line):
        if line["round"] == round_:
            raise Stopped

    return follow


def cut_after(round_, settings, folder):
    """A simulation that is killed after a round."""
    with pytest.raises(Stopped):
        simulate(settings, folder, follow=stop_after(round_))


def lines_of(folder):
    """The round lines of a run folder, without what may differ between two runs of the same settings."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
        line.pop("identification_bytes", None)  # a server that was restarted asks again
    return lines


def summary_of(folder):
    """The summary of a run folder, likewise."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["seconds"]
    return summary


def models_of(folder):
    """The models of a run folder, by file: tensors by name."""
    return {file.name: load_file(file) for file in sorted((folder / "models").glob("*.safetensors"))}
