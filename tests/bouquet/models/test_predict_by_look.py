"""A device without labels: its cluster is chosen by what its samples look like, where that tells clusters."""

import json
import shutil

import numpy as np
import pytest

from bouquet.client.data.loading import load_partition
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate

FLEET = ["data.clients=8", "data.samples_per_client=60", "run.rounds=4", "simulation.engine=inline"]
FESEM = ["strategy.name=fesem", "strategy.num_clusters=2", "data.groups=2"]


def run_of(folder, *changes):
    settings = load_settings(None, [*FLEET, *changes])
    simulate(settings, folder)
    return settings


def device(partition, part, seed):
    return load_partition("digits", partition, part, 8, seed, samples_per_client=60, groups=2)


def samples(folder, partition, part=0, count=None):
    """What a device of another fleet has, in an npz without labels."""
    np.savez(folder / f"{partition}-{part}.npz", x=device(partition, part, seed=1).train_x[:count])
    return folder / f"{partition}-{part}.npz"


def rounds_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def turned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("turned") / "run"
    run_of(folder, *FESEM, "data.partition=rotated")
    return folder


def test_the_cluster_is_that_of_the_devices_whose_samples_look_alike(turned, tmp_path, bouquet):
    last = rounds_of(turned)[-1]["assignment"]
    cluster_of = {device("rotated", part, seed=0).group: last[f"client-{part}"] for part in range(8)}
    assert sorted(cluster_of.values()) == [0, 1]
    for part in range(8):
        cluster, x = cluster_of[device("rotated", part, seed=1).group], samples(tmp_path, "rotated", part)
        status, out, err = bouquet("predict", x, "--run", turned)
        said = f"cluster {cluster} of 2, by what the images look like: by that, 8 of 8 devices come into theirs"
        assert (status, err) == (0, said)
        assert bouquet("predict", x, "--run", turned, "--cluster", cluster) == (0, out, "")


def test_few_samples_choose_none(turned, tmp_path, bouquet):
    status, out, err = bouquet("predict", samples(tmp_path, "rotated", 0, 7), "--run", turned)
    assert (status, out) == (2, "")
    assert "at least 8 samples look like, and 7 can be read" in err
    assert "--cluster" in err


def test_clusters_that_differ_in_labels_alone_are_not_chosen(tmp_path, bouquet):
    run_of(tmp_path / "run", *FESEM, "data.partition=label-permuted")
    status, out, err = bouquet("predict", samples(tmp_path, "label-permuted"), "--run", tmp_path / "run")
    assert (status, out) == (2, "")
    assert "does not tell this run's clusters" in err
    assert "--cluster" in err


def test_a_device_says_it_once(turned):
    """In the second round, which is the first one with two models: 256 bytes, and their name."""
    _, asked, *others = [line["bytes_up"] for line in rounds_of(turned)]
    assert all(8 * 256 < asked - other < 8 * 300 for other in others)


def test_a_run_of_one_cluster_needs_no_choice(tmp_path, bouquet):
    run_of(tmp_path / "run", "strategy.name=fedavg")
    x = samples(tmp_path, "rotated", 0, 3)
    status, out, err = bouquet("predict", x, "--run", tmp_path / "run")
    assert (status, err) == (0, "")
    assert bouquet("predict", x, "--run", tmp_path / "run", "--cluster", 0) == (0, out, "")


def test_a_run_that_knows_no_looks_says_so(turned, tmp_path, bouquet):
    shutil.copytree(turned, tmp_path / "run")
    (tmp_path / "run" / "models" / "looks.json").unlink()
    status, _, err = bouquet("predict", samples(tmp_path, "rotated"), "--run", tmp_path / "run")
    assert status == 2
    assert "models/looks.json): choose one by --cluster" in err
    status, _, err = bouquet("export", tmp_path / "model.pt", "--run", tmp_path / "run")
    assert (status, (tmp_path / "model.pt").exists()) == (2, False)
    assert "has clusters 0, 1: choose one by --cluster" in err
