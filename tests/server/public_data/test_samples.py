import numpy as np
import pytest
from PIL import Image

from bouquet.client.data.loading import load_partition
from bouquet.common.data.datasets import load_dataset
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.server.public_data.samples import load_public_samples
from bouquet.server.run.build import build_strategy


def load(*changes):
    return load_public_samples(load_settings(None, ["strategy.name=fedtsdp", *changes]))


def own(path, shape="[1, 8, 8]"):
    return load(f"server.public_data={path}", "data.dataset=own", "data.classes=['a','b']", f"data.input_shape={shape}")


def test_what_is_held_out_of_digits_belongs_to_no_client():
    held = load("data.public_fraction=0.1", "data.clients=4")
    options = load_settings(None, ["data.public_fraction=0.1"]).data.partition_options()
    parts = [load_partition("digits", "iid", i, 4, 0, **options) for i in range(4)]
    everything = [held.take(np.arange(held.size)), *(x for part in parts for x in (part.train_x, part.test_x))]
    digits = load_dataset("digits")
    whole = digits.standardised(digits.scaled(np.arange(1797)))
    total = np.sort(np.concatenate(everything).sum(axis=(1, 2, 3)))
    np.testing.assert_allclose(total, np.sort(whole.sum(axis=(1, 2, 3))), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(held.take(np.array([5, 2])), held.take(np.arange(held.size))[[5, 2]])


def test_an_npz_of_bytes_is_standardised_and_of_floats_taken_as_it_is(tmp_path):
    file = tmp_path / "public.npz"
    np.savez(file, x=np.array([[[0, 255], [51, 0]]] * 3, dtype=np.uint8), y=np.array([0, 1, 0]))
    found = own(file, "[1, 2, 2]")
    assert found.size == 3
    np.testing.assert_allclose(found.take(np.array([1])), [[[[-1, 1], [-0.6, -1]]]], atol=1e-6)
    np.savez(file, x=np.full((2, 1, 2, 2), 7.5))
    taken = own(file, "[1, 2, 2]").take(np.arange(2))
    assert taken.dtype == np.float32
    assert (taken == 7.5).all()


def test_bytes_beside_a_named_data_set_are_standardised_as_it_is(tmp_path):
    info = load_dataset("digits").info
    np.savez(tmp_path / "public.npz", x=np.full((1, 1, 8, 8), 255, dtype=np.uint8))
    found = load(f"server.public_data={tmp_path / 'public.npz'}").take(np.array([0]))
    np.testing.assert_allclose(found, np.full((1, 1, 8, 8), (1 - info.mean[0]) / info.std[0]), rtol=1e-5)


def test_a_folder_of_images_at_any_depth(tmp_path):
    (tmp_path / "some" / "more").mkdir(parents=True)
    Image.new("RGB", (16, 16), (255, 255, 255)).save(tmp_path / "some" / "white.png")
    Image.new("L", (8, 8), 0).save(tmp_path / "some" / "more" / "black.png")
    (tmp_path / "notes.txt").write_text("no image")
    found = own(tmp_path)
    assert found.take(np.arange(found.size))[:, 0, 0, 0].tolist() == [-1, 1]


def test_official_test_images_are_taken_without_asking(tmp_path, monkeypatch):
    from dataclasses import replace

    digits = load_dataset("digits")
    official = replace(digits, x=digits.x[100:], y=digits.y[100:], test_x=digits.x[:100], test_y=digits.y[:100])
    monkeypatch.setattr("bouquet.server.public_data.samples.load_dataset", lambda *_: official)
    found = load()
    assert found.size == 100
    np.testing.assert_array_equal(found.take(np.array([7])), digits.standardised(digits.scaled(np.array([7]))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "'fedtsdp' needs public.*set data.public_fraction, e.g. to 0.1"),
        (["data.dataset=own", "data.classes=['a','b']", "data.input_shape=[1,8,8]"], "set server.public_data"),
        (["server.public_data=/nowhere/x.npz"], "/nowhere/x.npz"),
        (["server.public_data=/nowhere"], "neither an .npz nor a folder with images"),
    ],
)
def test_missing_public_data_is_said_before_the_run(changes, message):
    with pytest.raises(BouquetError, match=message):
        build_strategy(load_settings(None, ["strategy.name=fedtsdp", *changes]))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros(3)}, "lacks 'x'; it holds z"),
        ({"x": np.zeros((3, 5, 5), dtype=np.uint8)}, r"shape \(3, 5, 5\), expected \(samples, 1, 8, 8\)"),
        ({"x": np.zeros((0, 8, 8), dtype=np.uint8)}, r"shape \(0, 8, 8\)"),
        ({"x": np.zeros((3, 8, 8), dtype=np.int64)}, "holds int64"),
        ({"x": np.full((3, 8, 8), np.nan)}, "finite"),
    ],
)
def test_an_npz_that_does_not_fit(tmp_path, arrays, message):
    np.savez(tmp_path / "public.npz", **arrays)
    with pytest.raises(BouquetError, match=message):
        own(tmp_path / "public.npz")


def test_a_folder_of_images_cannot_be_sensor_windows(tmp_path):
    with pytest.raises(BouquetError, match=r"images cannot have shape \(9, 128\)"):
        own(tmp_path, "[9, 128]")


def test_a_strategy_that_wants_none_gets_none():
    assert build_strategy(load_settings(None, ["strategy.name=fedavg"])).public is None
