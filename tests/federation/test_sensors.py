"""Tables on real devices over gRPC, from docs/sensors.md and docs/own-task.md: an own task, a file that grows."""

import json
import re
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from bouquet.monitor.status import collect
from tests.helpers.tanks import write_tables

pytestmark = pytest.mark.federation

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in ("sensors", "own-task"))


def block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL).group(1)


def test_the_page_is_followed_with_its_own_task_on_a_table_that_grows(commands, tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "upper.py").write_text(block("python"))
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 15
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    (tmp_path / "tanks.toml").write_text(block("toml").replace('kind = "forecast"', 'kind = "upper:Upper"'))
    write_tables(tmp_path / "tables", seed=0, devices=3)
    names = ("filled-1", "drained-1", "filled-2")

    def device(name, *more):
        where = ("--server", f"127.0.0.1:{commands.port}", "--insecure", "--state-dir", f"state-{name}", "--name", name)
        commands.start(name, "client", *where, "--data", f"tables/{name}.csv", *more)

    def train(rounds, *more):
        values = (f"run.rounds={rounds}", "server.min_clients=3", "server.straggler_grace=400")
        sets = [text for value in values for text in ("--set", value)]
        commands.wait_for_end(commands.server("tanks.toml", "--out", "run", "--insecure", *sets, *more))
        return [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]

    for name in names[:2]:
        device(name, "--allow-model", "upper:Upper")
    device(names[2])  # its owner does not let it run somebody's code
    before = train(2)
    assert [set(line["by_client"]) for line in before] == [set(names[:2])] * 2
    assert "task 'upper:Upper'" in commands.log(names[2])
    assert before[-1]["score"] == {"key": "pinball", "label": "pinball loss", "unit": "cm", "higher_is_better": False}
    # The logger goes on: a hundred whole rows, and half of one.
    table = tmp_path / "tables" / "filled-1.csv"
    rows = [f"2026-02-{20 + hour // 24:02d}T{hour % 24:02d}:00,60.0,0\n" for hour in range(100)]
    with table.open("a") as file:
        file.writelines([*rows, "2026-02-24T04:00,6"])
    after = train(4, "--resume")
    assert [line["round"] for line in after] == [1, 2, 3, 4]
    held = [line["by_client"]["filled-1"]["samples"] + line["by_client"]["filled-1"]["tested"] for line in after]
    # Tested windows share no row with training, which costs history + horizon − 1 windows between the parts, always.
    assert held == [held[0], held[0], held[0] + 100, held[0] + 100]
    assert {line["by_client"]["drained-1"]["samples"] for line in after} == {
        after[0]["by_client"]["drained-1"]["samples"]
    }
    assert "pinball loss" in commands.log("server")
    # All of the hundred are the same.
    stuck = "The newest values of 'level' are all the same, longer than ever before: is the sensor stuck?"
    assert [line["by_client"]["filled-1"].get("warnings", []) for line in after] == [[], [], [stuck], [stuck]]
    assert stuck in commands.log("filled-1")
    assert f"filled-1: {stuck}" in commands.log("server")
    assert any(f"filled-1: {stuck}" in warning for warning in collect(tmp_path / "run")["run"]["warnings"])


def test_a_bad_row_and_a_wrong_clock_between_rounds_cost_nobody_a_round(commands, tmp_path):
    (tmp_path / "tanks.toml").write_text(block("toml"))
    write_tables(tmp_path / "tables", seed=0, devices=3)
    names = ("drained-1", "filled-1", "filled-2")
    changes = ["server.min_clients=3", "server.straggler_grace=400", "personal.compare=false"]
    own = [
        *changes,
        "run.rounds=4",
        f"data.data_dir={tmp_path / 'tables'}",
        "data.clients=3",
        "simulation.engine=inline",
    ]
    simulate(load_settings(tmp_path / "tanks.toml", own), tmp_path / "simulated")  # as they were

    def serve(rounds, *more):
        sets = [text for value in (*changes, f"run.rounds={rounds}") for text in ("--set", value)]
        commands.wait_for_end(commands.server("tanks.toml", "--out", "run", "--insecure", *sets, *more))

    for name in names:
        where = ("--server", f"127.0.0.1:{commands.port}", "--insecure", "--state-dir", f"state-{name}", "--name", name)
        commands.start(name, "client", *where, "--data", f"tables/{name}.csv")
    serve(2)
    with (tmp_path / "tables" / "filled-2.csv").open("a") as file:
        file.write("1970-01-01T00:00:07,60.0,0\n2026-03-20T00:00,ERROR 7,0\n2026-03-20T0")
    serve(4, "--resume")

    done, expected = (
        [json.loads(line) for line in (tmp_path / run / "rounds.jsonl").read_text().splitlines()]
        for run in ("run", "simulated")
    )
    assert [line["failed"] for line in done] == [{}] * 4
    news = [line["by_client"]["filled-2"].pop("left_out", 0) for line in done]
    assert (news[0], news[-1]) == (0, 2)
    # Nothing else is other than where the rows never came; a real device alone keeps an older model in use.
    assert any("in_use" in said for line in done for said in line["by_client"].values())
    for line in (*done, *expected):
        for said in line["by_client"].values():
            said.pop("in_use", None), said.pop("mae_kept", None)
    assert [line["by_client"] for line in done] == [line["by_client"] for line in expected]
    models = [
        {
            (file.name, name): array.tobytes()
            for file in folder.glob("*.safetensors")
            for name, array in load_file(file).items()
        }
        for folder in (tmp_path / run / "models" for run in ("run", "simulated"))
    ]
    assert models[0]
    assert models[0] == models[1]
    own_log = commands.log("filled-2")
    assert "is of 1970-01-01 00:00, years from the others: the clock was wrong" in own_log
    assert "column 'level' holds 'ERROR 7'; it must be a number" in own_log
    assert "left out, which the devices' logs name: filled-2 2." in commands.log("server")
    status = collect(tmp_path / "run")
    assert [device["left_out"] for device in status["devices"]] == [0, 0, 2]
    assert any("filled-2 2" in warning for warning in status["run"]["warnings"])
