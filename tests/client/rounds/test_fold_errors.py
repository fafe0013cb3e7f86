"""What a device says of the received model and of the mixture, on the samples that it kept out: by hand."""

from types import SimpleNamespace

import pytest
import torch

from bouquet.client.rounds.mixture import Mixing
from bouquet.client.training import evaluation
from bouquet.client.training.evaluation import Scorer
from bouquet.common.settings import load_settings
from bouquet.common.task.task import task_of


def said(monkeypatch, task, received, trained, y):
    outputs = {"received": torch.tensor(received), "trained": torch.tensor(trained)}
    monkeypatch.setattr(evaluation, "predict", lambda model, _: outputs[model])
    fold = (torch.zeros(len(y), 1), torch.tensor(y))
    session = SimpleNamespace(fold=fold, load=lambda name: name, node=SimpleNamespace(task=task), scorer=Scorer(task))
    return Mixing(session)._counted("received", "trained")


@pytest.mark.parametrize(("truth", "hundredths"), [(0, -96), (1, 224)])
def test_probabilities_tell_where_both_name_the_same_class(truth, hundredths, monkeypatch):
    # Four times 2 · 0.2² − 2 · 0.4², or 2 · 0.8² − 2 · 0.6²: the first class has 0.6, and 0.8 with the trained one.
    sure = torch.tensor([[0.6, 0.4], [1.0, 0.0]]).log().tolist()
    found = said(monkeypatch, task_of(load_settings(None, [])), [sure[0]], [sure[1]], [truth])
    assert found == {"serving": hundredths}


def test_a_sample_that_changes_its_class_counts_beside(monkeypatch):
    # From 0.4 to 0.6 for the class that is right: a sample less, and four times 2 · 0.4² − 2 · 0.6².
    received, trained = torch.tensor([[[0.4, 0.6]], [[0.8, 0.2]]]).log().tolist()
    assert said(monkeypatch, task_of(load_settings(None, [])), received, trained, [0]) == {"serving": -260}


def test_of_numbers_a_sample_counts_as_one_whatever_its_unit(monkeypatch):
    chosen = ["task.kind=regression", "data.dataset=own", "table.inputs=a", "table.targets=b"]
    received, trained, y = [[0.0], [0.0], [0.0]], [[1.0], [900.0], [-1.0]], [[1.0], [900.0], [5.0]]
    assert said(monkeypatch, task_of(load_settings(None, chosen)), received, trained, y) == {"serving": -100}
