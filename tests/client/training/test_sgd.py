import contextlib
import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from bouquet.client.training import evaluation, sgd
from bouquet.client.training.objective import LinearTerm, ProximalTerm, objective
from bouquet.client.training.pauses import pausing
from bouquet.client.training.sgd import SGDOptions, mini_batches
from bouquet.common.errors import BouquetError


def linear(weight):
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(weight))
    return model


def test_proximal_term_by_hand():
    model = linear([[1.0], [2.0]])
    term = ProximalTerm({"weight": torch.tensor([[0.0], [5.0]])}, weight=0.5)
    assert term(model).item() == pytest.approx(0.25 * (1 + 9))
    assert objective(model, torch.tensor(1.0), [term, term]).item() == pytest.approx(1 + 5)
    term(model).backward()
    assert model.weight.grad.flatten().tolist() == [0.5, -1.5]


def test_a_linear_term_is_added_to_the_gradient():
    model = linear([[1.0], [2.0]])
    term = LinearTerm({"weight": torch.tensor([[3.0], [-1.0]])})
    assert term(model).item() == pytest.approx(3 - 2)
    term(model).backward()
    assert model.weight.grad.flatten().tolist() == [3.0, -1.0]


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize("trained", [("0.weight", "0.bias", "1.weight", "1.bias"), ("3.weight", "3.bias")])
def test_what_is_not_trained_stays_to_the_bit_buffers_too(trained):
    model, x, y = normalised(), torch.randn(8, 3), torch.arange(8) % 2
    before = copy.deepcopy(model.state_dict())
    options = SGDOptions(local_epochs=2, batch_size=4, learning_rate=0.1, momentum=0.9, weight_decay=0.1)
    sgd.train(model, x, y, options, [], torch.Generator().manual_seed(1), trained)
    layers = {name.partition(".")[0] for name in trained}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (name.partition(".")[0] not in layers), name
    assert all(p.requires_grad for p in model.parameters())


def test_several_steps_are_those_of_pytorchs_optimiser():
    options = SGDOptions(local_epochs=3, batch_size=2, learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(7, 3), torch.arange(7) % 2
    twin = copy.deepcopy(model)
    sgd.train(model, x, y, options, [], torch.Generator().manual_seed(1))
    optimiser, generator = torch.optim.SGD(twin.parameters(), 0.1, 0.9, weight_decay=0.01), torch.Generator()
    generator.manual_seed(1)
    for batch in (batch for _ in range(3) for batch in mini_batches(7, 2, generator)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(twin(x[batch]), y[batch]).backward()
        optimiser.step()
    assert all(torch.equal(own, its) for own, its in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize(("steps", "taken"), [(1, 1), (4, 4), (9, 6)])
def test_so_many_steps_end_training_also_within_an_epoch(steps, taken):
    """Of three mini-batches in each of two epochs; the loss is of those that the last epoch saw."""
    seen = []

    def loss(outputs, y):
        seen.append(int(y[0]))
        return outputs.sum() * 0 + y[0]

    model, x, y = nn.Linear(1, 3), torch.zeros(6, 1), torch.arange(6)
    options = SGDOptions(local_epochs=2, batch_size=2, learning_rate=0.1, local_steps=steps)
    mean = sgd.train(model, x, y, options, [], torch.Generator(), loss_of=sgd.TrainingLoss(loss=loss))
    last = seen[3:] or seen
    assert (len(seen), mean) == (taken, sum(last) / len(last))


def test_training_does_not_import_pytorchs_compiler():
    # It would double the time that PyTorch's import takes, in every message.
    script = """
import sys, torch
from bouquet.client.training import evaluation
from bouquet.client.training import sgd
from bouquet.client.procedures import registry
from bouquet.client.rounds import session
options = sgd.SGDOptions(local_epochs=1, batch_size=2, learning_rate=0.1, momentum=0.9, max_gradient_norm=1.0)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Dropout(), torch.nn.Flatten(), torch.nn.Linear(8, 2))
x, y = torch.ones(4, 1, 4, 4), torch.tensor([0, 1, 0, 1])
sgd.train(model, x, y, options, [], torch.Generator())
evaluation.test(model, x, y)
print([name for name in ("torch._dynamo", "sympy", "torch.onnx", "scipy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_mini_batches_cover_all_and_none_is_a_single_sample():
    batches = list(mini_batches(9, 4, torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in batches] == [4, 5]
    assert sorted(torch.cat(batches).tolist()) == list(range(9))
    assert [len(batch) for batch in mini_batches(1, 4, torch.Generator())] == [1]


def test_what_is_called_between_mini_batches_ends_training_and_tests_there():
    x, y = torch.ones(6, 1), torch.zeros(6, dtype=torch.int64)
    options = SGDOptions(local_epochs=2, batch_size=2, learning_rate=0.5)
    seen = []

    def train(limit):
        model = linear([[1.0], [-1.0]])
        seen.clear()

        def between():
            if len(seen) == limit:
                raise InterruptedError
            seen.append(model.weight.detach().clone())

        with pausing(between), contextlib.suppress(InterruptedError):
            sgd.train(model, x, y, options, (), torch.Generator().manual_seed(0))
        return model.weight.detach().clone()

    whole = train(limit=100)
    steps = list(seen)
    assert len(steps) == 6
    assert torch.equal(train(limit=4), steps[4])  # four steps, and no more
    assert not torch.equal(whole, steps[4])
    with pausing(lambda: seen.append(None)):
        before = len(seen)
        evaluation.predict(linear([[1.0], [1.0]]), torch.ones(2 * evaluation.TEST_BATCH, 1))
        assert len(seen) == before + 2


def test_divergence_is_an_error_that_says_what_to_do():
    model = linear([[0.0], [0.0]])
    x, y = torch.tensor([[1e30]] * 4), torch.tensor([0, 1, 0, 1])
    options = SGDOptions(local_epochs=3, batch_size=1, learning_rate=1e10)
    with pytest.raises(BouquetError, match=r"diverged .* lower train\.learning_rate"):
        sgd.train(model, x, y, options, [], torch.Generator())


def test_scores_by_hand():
    model = linear([[1.0], [-1.0]])  # class 0 for positive x
    scores = evaluation.test(model, torch.tensor([[1.0], [2.0], [-1.0], [3.0]]), torch.tensor([0, 0, 1, 1]))
    assert (scores.score, scores.examples) == (0.75, 4)
    assert scores.f1 == pytest.approx((0.8 + 2 / 3) / 2)
    assert evaluation.mean_loss(model, torch.zeros(1, 1), torch.tensor([0])) == pytest.approx(math.log(2))


def test_device_choice():
    assert sgd.choose_device("cpu").type == "cpu"
    if not torch.cuda.is_available():
        assert sgd.choose_device("auto").type == "cpu"
        with pytest.raises(BouquetError, match="finds no CUDA device"):
            sgd.choose_device("cuda")


def test_batch_normalisation_cannot_train_on_one_sample():
    model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.BatchNorm1d(3))
    x, y, generator = torch.zeros(1, 1), torch.tensor([0]), torch.Generator()
    options = SGDOptions(local_epochs=1, batch_size=8, learning_rate=0.1)
    with pytest.raises(BouquetError, match=r"mini-batch of one sample: it needs at least 2 training samples"):
        sgd.train(model, x, y, options, [], generator)
    with pytest.raises(BouquetError, match="mini-batch of one sample"):
        sgd.loss_and_gradients(model, x, y)


def test_a_loss_that_is_no_number_is_never_a_good_one():
    """A model of infinite weights: the choice of a cluster, or of a structure, takes the least loss."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(float("inf"))
    loss = evaluation.mean_loss(model, torch.tensor([[1.0, -1.0]]), torch.tensor([0]))
    assert loss == torch.finfo(torch.float32).max


def test_gradient_clipping():
    model = linear([[0.0], [0.0]])
    options = SGDOptions(local_epochs=1, batch_size=1, learning_rate=1.0, max_gradient_norm=0.1)
    sgd.train(model, torch.ones(1, 1), torch.zeros(1, dtype=torch.long), options, [], torch.Generator())
    assert model.weight.norm().item() == pytest.approx(0.1, rel=1e-4)
