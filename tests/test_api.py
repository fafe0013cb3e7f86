"""Each name of the reference has an example in its docstring, and the example is true."""

import doctest
import inspect
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

import bouquet

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
NAMES = [name for block in re.findall(r":toctree: reference\n\n((?:   \w+\n)+)", PAGE) for name in block.split()]
KNOWN = [Array, ArrayRecord, bouquet, dataclass, np, replace, torch]  # what an example need not import


def test_the_reference_has_all_that_has_a_short_name():
    types_alone = {"Matrix", "Vector"}
    assert set(NAMES) == {*bouquet._HOMES, *bouquet.strategies._CONTRACT} - types_alone


@pytest.mark.parametrize("name", NAMES)
def test_its_example_is_true(name, tmp_path):
    known = {each.__name__.rpartition(".")[2]: each for each in KNOWN} | {"np": np, "folder": tmp_path}
    text = inspect.getdoc(getattr(bouquet, name))
    example = doctest.DocTestParser().get_doctest(text, known, name, None, None)
    assert example.examples
    said = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=said.append)
    assert result.failed == 0, "".join(said)


def test_paths_may_be_text(tmp_path):
    (tmp_path / "run.toml").write_text('[run]\nrounds = 1\n[data]\nclients = 4\n[simulation]\nengine = "inline"\n')
    bouquet.simulate(bouquet.load_settings(f"{tmp_path}/run.toml"), f"{tmp_path}/run")
    assert bouquet.read_run(f"{tmp_path}/run").completed == 1
