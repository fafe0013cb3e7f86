import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from bouquet.client.training import sgd as local_sgd
from bouquet.client.training.delegate import LocalTraining
from bouquet.client.training.objective import LinearTerm, ProximalTerm
from bouquet.client.training.sgd import SGDOptions
from bouquet.common.errors import BouquetError
from bouquet.common.model.architectures import build_model
from bouquet.common.model.build import state_vector
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation import batched_sgd
from bouquet.experiments.simulation.batched_engine import Batch
from bouquet.experiments.simulation.batched_sgd import knows_terms, train_many, why_not
from bouquet.experiments.simulation.run import simulate

BASE = ["run.rounds=2", "data.clients=7", "data.partition=dirichlet", "server.min_clients=2", "train.local_epochs=2"]


def task(samples=20, name="mlp", seed=0, terms=(), trained=None, rate=0.1, **options):
    """A client's training, of random samples of 8 × 8 images."""
    model = build_model(name, (1, 8, 8), 3, 0)
    layout, start = state_vector(model)
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(samples, 1, 8, 8, generator=draw), torch.randint(3, (samples,), generator=draw)
    sgd = SGDOptions(**{"local_epochs": 2, "batch_size": 8, "learning_rate": rate, "momentum": 0.9, **options})
    return LocalTraining(model, layout, start, x, y, sgd, terms, torch.Generator().manual_seed(seed), trained)


def one_by_one(task):
    arrays = {name: torch.as_tensor(array) for name, array in task.layout.unflatten(task.start).items()}
    task.model.load_state_dict(arrays)
    loss = local_sgd.train(task.model, task.x, task.y, task.options, task.terms, task.generator, task.trained)
    return state_vector(task.model)[1], loss


def compare(make, threads=1):
    """Train what ``make`` makes both ways, because training consumes the generators."""
    for (vector, loss), (own, own_loss) in zip(train_many(make(), threads), map(one_by_one, make()), strict=True):
        np.testing.assert_allclose(vector, own, rtol=0, atol=1e-5)
        assert loss == pytest.approx(own_loss, abs=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_clients_with_unequal_numbers_of_samples_and_mini_batches_of_unequal_size(threads):
    sizes = (3, 40, 17, 20, 8, 25)  # of 17, the last batch of one joins the one before it
    compare(lambda: [task(size, seed=seed) for seed, size in enumerate(sizes)], threads)


def test_threads_that_train_tasks_of_one_shared_model_do_not_meet_in_it():
    """As those of a simulation, which fills one model for all of its messages."""
    shared = build_model("cnn-dcpfl", (1, 8, 8), 3, 0)
    many = {"local_epochs": 20, "batch_size": 4}
    own = train_many([task(20, "cnn-dcpfl", seed, **many) for seed in range(8)])
    made = [replace(task(20, "cnn-dcpfl", seed, **many), model=shared) for seed in range(8)]
    for (vector, loss), (expected, expected_loss) in zip(train_many(made, threads=4), own, strict=True):
        np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-5)
        assert loss == pytest.approx(expected_loss, abs=1e-5)


@pytest.mark.parametrize("name", ["mlp", "cnn-dcpfl"])
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.0},
        {"momentum": 0.0, "max_gradient_norm": 0.1, "weight_decay": 0.1},
        {"max_gradient_norm": 0.1},
        {"weight_decay": 0.1},
        {"local_epochs": 30, "rate": 0.01},  # the momentum is scaled anew (`_LEAST_SCALE`)
        {"momentum": 0.1, "weight_decay": 0.1},
        {"momentum": 1e-9},
    ],
)
def test_the_options_of_sgd(name, options):
    compare(lambda: [task(20 + seed, name, seed, **options) for seed in range(3)])


def test_samples_of_a_few_steps_are_put_together_at_a_time(monkeypatch):
    monkeypatch.setattr(batched_sgd, "SAMPLES_BYTES", 2 * 3 * 9 * 64 * 4)  # two steps of three models
    compare(lambda: [task(size, seed=seed) for seed, size in enumerate((3, 40, 17))])


def test_each_model_has_its_own_terms_and_rate():
    def make():
        names = [name for name, _ in task().model.named_parameters()]
        ones = {name: torch.ones_like(p) for name, p in task().model.named_parameters()}
        near = ProximalTerm({names[0]: ones[names[0]]}, 0.5)
        terms = [(), (near,), (near, ProximalTerm(ones, 0.1), LinearTerm(ones))]
        return [task(seed=seed, terms=own, rate=0.01 * (1 + seed // 2)) for seed, own in enumerate(terms)]

    compare(make)


def test_what_is_not_trained_stays_to_the_bit():
    trained = [name for name, _ in task().model.named_parameters()][2:]
    compare(lambda: [task(seed=seed, trained=trained) for seed in range(3)])
    (vector, _), *_ = train_many([task(trained=trained), task(seed=1)])
    frozen = task().layout.tensors[0].columns
    assert (vector[frozen] == task().start[frozen]).all()
    assert (vector != task().start).any()


def test_a_model_that_diverges_leaves_the_others_as_they_are():
    bad, good = train_many([task(rate=1e30), task(rate=0.1)])
    assert isinstance(bad, BouquetError)
    assert "diverged" in str(bad)
    np.testing.assert_allclose(good[0], one_by_one(task(rate=0.1))[0], rtol=0, atol=1e-5)


def test_models_that_do_not_fit_into_the_cache_together_go_one_after_another(monkeypatch):
    monkeypatch.setattr(batched_sgd, "CPU_BYTES", 1)
    compare(lambda: [task(seed=seed) for seed in range(3)])


class OwnLayer(torch.nn.Linear):
    pass


def test_what_cannot_be_batched_is_named():
    assert why_not(task()) == ""
    assert "dropout" in why_not(task(name="cnn-fedtsdp"))
    assert "norm1.running_mean" in why_not(task(name="cnn-batchnorm"))
    assert not knows_terms(task(terms=[lambda model: torch.zeros(())]))
    own = task()
    own.model.fc1 = OwnLayer(64, 64)
    assert "OwnLayer" in why_not(own)


def test_clients_run_in_turn_and_an_exception_is_that_of_the_caller():
    seen = []

    def work(name):
        seen.append(name)
        return name

    def fails():
        raise ValueError("it")

    assert Batch()([lambda: work("a"), lambda: work("b")]) == ["a", "b"]
    assert seen == ["a", "b"]
    with pytest.raises(ValueError, match="it"):
        Batch()([fails, lambda: work("c")])


def runs(folder, *changes):
    return {
        engine: simulate(load_settings(None, [*BASE, *changes, f"simulation.engine={engine}"]), folder / engine)
        for engine in ("inline", "batched")
    }


def centers(folder):
    return {f"{file.name}/{n}": a for file in sorted(folder.glob("models/*")) for n, a in load_file(file).items()}


@pytest.mark.parametrize(
    "changes",
    [
        ("strategy.name=fedavg", "model.name=mlp"),
        ("strategy.name=fedavg", "model.name=cnn-dcpfl", "train.max_gradient_norm=none", "train.momentum=0"),
        ("strategy.name=fedprox", "train.weight_decay=0.01"),
        ("strategy.name=ditto",),
        ("strategy.name=feddane",),
    ],
)
def test_the_same_as_one_by_one(tmp_path, changes):
    found = runs(tmp_path, *changes)
    one, many = centers(tmp_path / "inline"), centers(tmp_path / "batched")
    assert one.keys() == many.keys()
    for name in one:
        np.testing.assert_allclose(many[name], one[name], rtol=0, atol=1e-5)
    assert found["batched"]["accuracy_by_client"] == found["inline"]["accuracy_by_client"]


def test_a_model_with_dropout_is_trained_one_by_one_and_the_log_says_so_once(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        found = runs(tmp_path, "strategy.name=fedavg", "model.name=cnn-fedtsdp", "data.clients=3")
    assert [record.getMessage() for record in caplog.records if "dropout" in record.getMessage()] == [
        "clients are trained one by one, although the engine is 'batched': it has dropout, whose random numbers are "
        "each client's own"
    ]
    one, many = centers(tmp_path / "inline"), centers(tmp_path / "batched")
    assert all((many[name] == one[name]).all() for name in one)
    assert found["batched"]["accuracy_by_client"] == found["inline"]["accuracy_by_client"]
