"""Photos on real devices: weights from a file, frozen layers that travel once; warm, cold and simulated the same."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from safetensors.torch import save_file

from bouquet.common.model.build import initial_model
from bouquet.common.settings import load_settings
from bouquet.experiments.report.run_report import write_report
from bouquet.experiments.simulation.run import simulate
from bouquet.models.kept import device_model
from bouquet.models.predict import predict
from bouquet.monitor.status import collect

pytestmark = pytest.mark.federation

CHANGES = [
    "personal.compare=true",
    "data.dataset=own",
    'data.classes=["dark","light"]',
    "data.input_shape=[3,8,8]",
    "model.name=cnn-batchnorm",
    "model.frozen=conv1,norm1",
    "train.augment=crop,flip,color",
    "train.class_weights=balanced",
    "strategy.name=fedavg",
    "run.rounds=2",
    "server.min_clients=2",
    "server.straggler_grace=600",
]


BYTES = ("bytes_up", "bytes_up_plain", "bytes_by_client")


@pytest.fixture
def photos(tmp_path):
    generator = np.random.default_rng(0)
    for device, dark, light in (("a", 8, 8), ("b", 12, 4)):
        for name, count, middle in (("dark", dark, 60), ("light", light, 190)):
            folder = tmp_path / "photos" / device / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.normal(middle, 30, size=(10, 12, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


def lines(run):
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def same(line):
    return {
        k: v
        for k, v in line.items()
        if "seconds" not in k and k not in ("identification_bytes", "absent", "other_releases")
    }


def test_warm_and_cold_devices_do_as_simulated_and_get_again_what_they_lost(commands, photos, tmp_path):
    weights = tmp_path / "mine.safetensors"
    save_file(initial_model(load_settings(None, [*CHANGES, "run.seed=9"])).state_dict(), weights)
    changes = [*CHANGES, f"model.weights={weights}"]
    simulated = load_settings(None, [*changes, f"data.data_dir={photos}", "simulation.engine=inline"])
    simulate(simulated, tmp_path / "simulated")

    def serve(*more):
        sets = [text for value in (*changes, *more) for text in ("--set", value)]
        commands.wait_for_end(commands.server("--out", "run", "--insecure", *sets, *(["--resume"] if more else [])))

    for name, how in (("a", ()), ("b", ("--cold",))):
        where = ("--server", f"127.0.0.1:{commands.port}", "--insecure", "--state-dir", f"state-{name}", "--name", name)
        commands.start(name, "client", *where, "--data", str(photos / name), *how)
    serve()
    assert [same(line) for line in lines(tmp_path / "run")] == [same(line) for line in lines(tmp_path / "simulated")]
    model, expected = (load_file(tmp_path / run / "models" / "cluster-0.safetensors") for run in ("run", "simulated"))
    assert {name: array.tobytes() for name, array in model.items()} == {n: a.tobytes() for n, a in expected.items()}
    frozen = {name: array for name, array in load_file(weights).items() if name.startswith(("conv1", "norm1"))}
    assert all(np.array_equal(model[name], array) for name, array in frozen.items())

    (backbone,) = (tmp_path / "state-b").glob("run-*/backbone-*.safetensors")
    backbone.unlink()
    serve("run.rounds=4")
    done = lines(tmp_path / "run")
    assert [sorted(line["failed"]) for line in done] == [[], [], ["b"], []]
    assert "it will be sent it again in the next round" in done[2]["failed"]["b"]
    assert [("conv1" in line["bytes_by_layer"]["down"]) for line in done] == [True, False, False, True]
    for name in "ab":
        found = list(predict(device_model(tmp_path / f"state-{name}"), [photos / name], top=1))
        assert len(found) == 16
        assert not any(prediction.error for prediction in found)


def test_a_bad_photo_a_new_class_and_a_dark_camera_cost_nobody_a_round(commands, photos, tmp_path):
    (photos / "c").mkdir()
    for name in ("dark", "light"):
        shutil.copytree(photos / "a" / name, photos / "c" / name)
    changes = [c for c in CHANGES if not c.startswith(("model.frozen", "run.rounds", "server.min_clients"))]
    changes += ["server.min_clients=3", "personal.compare=false"]
    own = ["run.rounds=4", f"data.data_dir={photos}", "simulation.engine=inline"]
    simulate(load_settings(None, [*changes, *own]), tmp_path / "simulated")  # as they were

    def serve(rounds, *more):
        sets = [text for value in (*changes, f"run.rounds={rounds}") for text in ("--set", value)]
        commands.wait_for_end(commands.server("--out", "run", "--insecure", *sets, *more))

    for name in "abc":
        where = ("--server", f"127.0.0.1:{commands.port}", "--insecure", "--state-dir", f"state-{name}", "--name", name)
        commands.start(name, "client", *where, "--data", str(photos / name))
    serve(2)
    (photos / "b" / "dark" / "torn.jpg").write_bytes(b"\xff\xd8 no photo")
    shutil.copytree(photos / "b" / "light", photos / "b" / "blight")
    serve(4, "--resume")

    done, expected = lines(tmp_path / "run"), lines(tmp_path / "simulated")
    assert [line["failed"] for line in done] == [{}] * 4
    news = [line["by_client"]["b"] for line in done]
    assert ("left_out" in news[0], news[-1]["left_out"], news[-1]["unknown_classes"]) == (False, 1, ["blight"])
    # Nothing else is other than where they never came, but that the device says so.
    told = ("left_out", "unknown_classes")
    for line in done:
        line["by_client"]["b"] = {key: value for key, value in line["by_client"]["b"].items() if key not in told}
    learned = [
        [{k: v for k, v in same(line).items() if k not in ("diagnosis", "warnings", *BYTES)} for line in some]
        for some in (done, expected)
    ]
    assert learned[0] == learned[1]
    model, without = (load_file(tmp_path / run / "models" / "cluster-0.safetensors") for run in ("run", "simulated"))
    assert {name: array.tobytes() for name, array in model.items()} == {n: a.tobytes() for n, a in without.items()}

    own, said = commands.log("b"), commands.log("server")
    assert "torn.jpg cannot be read (it is no image of a kind that is read)" in own
    assert "Not a class of this run, and waits for one whose data.classes name it: blight (4 images)." in own
    assert "b: a class that this run does not know: blight." in said
    assert "left out, which the devices' logs name: b 1." in said
    status = collect(tmp_path / "run")
    assert [(d["left_out"], d["unknown_classes"]) for d in status["devices"]] == [(0, []), (1, ["blight"]), (0, [])]
    assert any("blight" in warning for warning in status["run"]["warnings"])

    for number in range(5):  # the camera of another device is covered now
        Image.new("RGB", (12, 10), (2, 3, 2)).save(photos / "c" / "dark" / f"night-{number}.png")
    serve(6, "--resume")
    later = lines(tmp_path / "run")[4:]
    dark = "Most of the newest photos show nothing: is the camera dark, or covered?"
    assert [(line["failed"], sorted(line["by_client"])) for line in later] == [({}, ["a", "b", "c"])] * 2
    assert ["warnings" in line["by_client"]["c"] for line in done] == [False] * 4
    assert [later[-1]["by_client"][name].get("warnings", []) for name in "abc"] == [[], [], [dark]]
    assert dark in commands.log("c")
    assert f"c: {dark}" in commands.log("server").removeprefix(said)
    assert f"c: {dark}" in collect(tmp_path / "run")["run"]["warnings"]
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert f"c: {dark}" in page
    assert "b: a class that this run does not know: blight." in page
