import json
import re
import shlex
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings, parse_settings
from bouquet.experiments.report.curves import chart
from bouquet.experiments.report.devices import cards
from bouquet.experiments.report.reproduce import SHORT_OPTIONS, arguments, reproduce
from bouquet.experiments.report.run_report import filters, headline, render_report, write_report
from bouquet.experiments.report.units import human_bytes, human_seconds
from bouquet.server.record.overview import overview
from bouquet.server.record.reader import read_run

VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Checks that every tag is closed, and collects what a page loads and says."""

    def __init__(self, text):
        super().__init__()
        self.open, self.sources, self.tags, self.said = [], [], Counter(), []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.sources += [value for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said.append(data.strip())


def test_the_report_is_one_page_that_loads_nothing(write_run):
    folder = write_run(clients=4, groups=2)
    path = write_report(folder)
    page = Page(path.read_text())

    assert path == folder / "report.html"
    assert [file.name for file in folder.iterdir() if file.name.startswith(".")] == []
    assert len(page.sources) == page.tags["img"] == 1
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert page.tags["script"] == 0
    assert {"Accuracy 0.900", "client-3", "2 clusters for 2 true groups", "Bytes a round"} <= set(page.said)
    assert any(text.startswith("fesem on digits, rotated. 4 clients, ") for text in page.said)
    assert "Replies that failed" not in page.said


def test_every_text_from_outside_is_escaped(write_run, edit_round):
    attack = "<script>alert('x')</script>&amp;"
    settings = parse_settings({"strategy": {"name": "fesem", "note": attack}, "data": {"partition": "rotated"}}, {})
    folder = write_run(settings=settings)
    edit_round(folder, 2, failed={attack: attack}, failures=1, assignment={attack: 1})
    page = Page(write_report(folder).read_text())

    assert page.tags["script"] == 0
    assert page.said.count(attack) >= 4  # on a card, twice among the failures, in the settings


def test_the_numbers_are_those_of_the_summary(write_run):
    run = read_run(write_run(clients=4, groups=2, rounds=3, accuracy=0.9))
    numbers = dict(headline(run))

    assert numbers["accuracy, worst tenth of clients"] == "0.900"
    assert numbers["purity"] == "1.000"
    assert numbers["up, to the server"] == "2.4 kB"
    assert numbers["failed replies"] == "0"


def test_the_numbers_on_top_say_what_compression_saved(write_run, edit_round):
    folder = write_run(clients=4, rounds=2, finished=False)
    for number in (1, 2):
        edit_round(folder, number, bytes_up_plain=50_000, bytes_down_plain=1600)
    numbers = dict(headline(read_run(folder)))

    assert numbers["up, to the server, 100 kB uncompressed"] == "1.6 kB"
    assert numbers["down, to the devices"] == "3.2 kB"  # nothing was saved


def test_a_card_says_state_cluster_and_gain(write_run, edit_round):
    folder = write_run(clients=3, groups=None, finished=False)
    beside = {"own": 0.9, "alone": 0.85, "tested": 20}
    numbers = {"samples": 80.0, "accuracy": 0.8, "temperature": 61.4, "battery": 0.8}
    edit_round(folder, 2, by_client={"client-1": {"beside": {"own": 0.7, "alone": 0.6}}})
    by_client = {"client-1": {**numbers, "beside": beside}, "client-2": {"beside": {"own": 0.5, "alone": 0.6}}}
    edit_round(folder, 3, by_client=by_client, failed={"client-0": "The disk is full."}, failures=1)
    first, second, third = cards(read_run(folder), overview(read_run(folder))["devices"], None)

    assert (first["state"], first["kind"], first["why"]) == ("failing", "bad", "round 3: The disk is full.")
    assert (first["own"], first["label"], first["gain"], first["spark"] != "") == ("–", "accuracy", "", False)
    assert (second["own"], second["alone"], second["gain"], second["worse"]) == ("0.900", "0.850", "+5.0 points", False)
    assert second["gain_kind"] == "calm"  # one of twenty
    assert (second["colour"], second["machine"], second["seen"]) == (
        "#0072b2",
        "61\u00a0°C, battery 80%",
        "last reply in round 3",
    )
    assert second["spark"] == "0.0,22.0 50.0,6.7 100.0,2.0"  # 0.05, the least of all, 0.7, and 0.9, the most
    assert (third["gain"], third["gain_kind"], third["worse"]) == ("−10.0 points", "bad", True)


def test_of_many_devices_each_is_a_line_and_some_may_be_shown_alone(write_run, edit_round):
    folder = write_run(clients=30, groups=2)
    edit_round(folder, 3, failed={"client-7": "gone"}, failures=1)
    run = read_run(folder)

    found = filters(cards(run, overview(run)["devices"], None))
    assert found == [
        ("device", "all", 30),
        ("look", "need a look", 1),
        ("k0", "cluster 0", 15),
        ("k1", "cluster 1", 15),
    ]
    text = render_report(run)
    assert text.count('class="filter"') == Page(text).said.count("need a look") * 4 == 4
    assert 'id="f-look" checked' in text
    assert 'class="filter"' not in render_report(read_run(write_run("few", clients=24)))


def test_the_curves_show_the_values_of_each_round(write_run):
    text = render_report(read_run(write_run(rounds=3, accuracy=0.75)))
    values = re.findall(r'<div class="values">(.*?)</div>', text)
    said = [re.sub("<[^>]*>", "", value) for value in values]

    assert "after round 2: 0.500 the models sent 0.300 after training on the device" in said
    assert "after round 1: 1 the models sent 1.5 while training" in said
    assert "after round 3: 1.2 kB up, to the server 2.4 kB down, to the devices" in said


def test_a_run_that_was_stopped_is_reported_as_such(write_run, edit_round):
    folder = write_run(rounds=2, finished=False)
    edit_round(folder, 2, failed={"client-1": "The reply came too late."}, failures=3)
    page = Page(write_report(folder).read_text())

    assert "This run has not ended: 2 of 2 rounds are recorded, no summary yet." in page.said
    assert {"The reply came too late.", "2 without a recorded reason"} <= set(page.said)


def test_the_report_has_the_runs_name_and_says_when_it_was_and_who_was_absent(write_run, edit_round):
    settings = parse_settings({"run": {"name": "greenhouse", "rounds": 4}, "data": {"clients": 4}}, {})
    folder = write_run(settings=settings, clients=4, rounds=4)
    for number in (1, 2, 4):
        edit_round(folder, number, absent=["door-pi"])
    by_client = {"client-0": {"samples": 48.0, "accuracy": 0.5}}
    edit_round(folder, 4, by_client=by_client)
    times = {"started": 1.7e9, "ended": 1.7e9 + 3600}
    (folder / "status.json").write_text(json.dumps({"state": "finished", **times}))
    page = Page(write_report(folder).read_text())

    assert page.said.count("greenhouse") >= 2  # title and heading
    assert any("Started 2023-11-1" in text and ", ended 2023-11-1" in text for text in page.said)
    assert {"1 device absent in some rounds", "door-pi", "1–2, 4", "last reply in round 4, 48 samples"} <= set(
        page.said
    )


def test_a_run_before_its_first_round_is_reported(write_run):
    folder = write_run(finished=False)
    (folder / "rounds.jsonl").unlink()

    assert "No round has ended yet." in Page(write_report(folder).read_text()).said


def test_very_many_failures_are_cut_and_counted(write_run, edit_round):
    folder = write_run()
    edit_round(folder, 1, failed={f"client-{n}": "gone" for n in range(200)}, failures=200)
    edit_round(folder, 3, failed={"client-7": "lately"}, failures=1)
    said = Page(write_report(folder).read_text()).said

    assert "201 failures are recorded; the page shows the last 200." in said
    assert (said.count("lately"), said.count("gone")) == (1, 199)


def test_devices_that_were_not_tested_and_what_the_strategy_recorded_are_shown(write_run):
    recorded = {
        "client-10": "No reply within 5 s.",
        "client-3": "The disk is full.",
        "client-5": "No reply within 5 s.",
    }
    shown = ["client-5, client-10. No reply within 5 s.", "client-3. The disk is full."]
    folder = write_run()
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"not_evaluated": recorded, "strategy_record": {"restarts": 20}}
    (folder / "summary.json").write_text(json.dumps(summary))
    said = Page(write_report(folder).read_text()).said

    assert all(f"Not tested at the end: {line}" in said for line in shown)
    assert '{\n  "restarts": 20\n}' in said


def test_who_failed_an_evaluation_between_rounds_is_shown_its_training_not_in_doubt(write_run, edit_round):
    folder = write_run(clients=4)
    evaluation = {"clients": 3, "accuracy_macro": 0.5, "not_evaluated": {"client-1": "The camera is gone."}}
    edit_round(folder, 2, evaluation=evaluation)
    run = read_run(folder)

    assert "In the evaluation: The camera is gone." in Page(write_report(folder).read_text()).said
    assert dict(headline(run))["failed evaluations between rounds"] == "1"
    assert dict(headline(run))["failed replies"] == "0"


def test_a_record_that_cannot_be_read_leaves_the_old_report(write_run):
    folder = write_run()
    (folder / "report.html").write_text("old")
    (folder / "summary.json").write_text("{")

    with pytest.raises(BouquetError, match=r"summary\.json"):
        write_report(folder)
    assert (folder / "report.html").read_text() == "old"


def test_devices_with_data_of_their_own_cannot_be_simulated(write_run):
    settings = parse_settings({"data": {"dataset": "own", "classes": ["a", "b"], "input_shape": [3, 8, 8]}}, {})
    command = reproduce(settings, write_run())["command"]

    assert command.startswith("bouquet server --set data.dataset=own ")
    assert as_settings(shlex.split(command)[2:]) == settings


def as_settings(words):
    """What the command line makes of the arguments: short options, then --set."""
    keys = {option: key for key, option in SHORT_OPTIONS.items()}
    pairs = list(zip(words[::2], words[1::2], strict=True))
    texts = [f"{keys[option]}={value}" for option, value in pairs if option in keys]
    return load_settings(None, texts + [value for option, value in pairs if option == "--set"])


values = st.one_of(
    st.integers(-5, 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=12).map(str.strip),
    st.lists(st.integers(0, 9), max_size=3),
)


@given(
    st.dictionaries(st.from_regex("[a-z]{1,8}", fullmatch=True).filter(lambda key: key != "name"), values, max_size=4),
    st.lists(st.integers(1, 99), max_size=3),
    st.one_of(st.none(), st.floats(0.001, 1e6)),
    st.booleans(),
)
def test_the_arguments_are_read_back_as_the_same_settings(options, hidden, norm, short):
    settings = parse_settings(
        {"strategy": options, "model": {"hidden": hidden}, "train": {"max_gradient_norm": norm}}, {}
    )
    # Through JSON, as a run folder keeps them.
    settings = parse_settings(json.loads(settings.model_dump_json()), {})

    assert as_settings(shlex.split(shlex.join(arguments(settings, short)))) == settings


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_022_000, "2.02 MB"), (999_960, "1 MB"), (3.5e10, "35 GB")],
)
def test_bytes_are_written_in_powers_of_ten(count, text):
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.26, "8.3 s"), (245, "4 min 05 s"), (59.99, "60.0 s"), (7620, "2 h 07 min")]
)
def test_durations_are_written_for_people(seconds, text):
    assert human_seconds(seconds) == text


def test_an_untrained_models_error_does_not_press_the_later_ones_into_a_line():
    drawn = chart("MAE", [("a", "red", (np.arange(4), np.array([9.0, 0.5, 0.3, 0.4])))], str)
    assert max(float(text) for _, text in drawn["ticks"]) < 1.5
    assert drawn["lines"][0][1].startswith("0.0,0 ")  # at the top
    assert drawn["bands"][0]["values"][0][2] == "9.0"
    whole = chart("accuracy", [("a", "red", (np.arange(4), np.array([0.1, 0.8, 0.9, 0.9])))], str)
    assert max(float(text) for _, text in whole["ticks"]) >= 0.9


def test_of_very_many_rounds_a_point_is_the_mean_of_some():
    points = (np.arange(1, 10_001), np.tile([0.0, 1.0], 5000))
    whole = chart("accuracy", [("a", "red", points), ("none", "blue", (points[0][:0], points[1][:0]))], str)
    assert len(whole["lines"]) == 1
    assert whole["lines"][0][1].count(",") == 400
    assert len(whole["bands"]) <= 150
    assert (whole["bands"][0]["at"], whole["bands"][0]["values"][0][2]) == ("mean of rounds 1–25", str(12 / 25))
    assert (whole["first"], whole["last"]) == ("1", "10000")
    newest = chart("accuracy", [("a", "red", points)], str, newest=3)
    assert [band["at"] for band in newest["bands"]] == [f"after round {at}" for at in (9998, 9999, 10000)]
    assert (newest["first"], newest["lines"][0][1].count(",")) == ("9998", 3)
