"""What is said of a run, from lines written by hand: ten classes, so that guessing has a loss of 2.303."""

import math
from dataclasses import replace

import pytest

from bouquet.common.settings import load_settings
from bouquet.common.task.score import ACCURACY, Score
from bouquet.server.monitoring.diagnosis import Expected, add, all_warnings, diagnose, new_warnings
from bouquet.server.run.build import build_strategy, what_to_expect

EXPECTED = Expected(classes=10, learning_rate=0.1)


def lines_of(*losses, **more):
    return [
        {"round": t, "replies": 4, "failed": {}, "loss": loss, "assignment": {"a": 0, "b": 1}, **more}
        for t, loss in enumerate(losses, start=1)
    ]


@pytest.mark.parametrize(
    "losses",
    [
        [2.3, 1.9, 1.2, 0.8, 0.6, 0.5],
        [2.31, 2.30, 2.30, 2.30],  # too early to tell
        [2.3, 0.32, 0.12, 0.06, 0.31, 0.11, 0.05],  # DC-PFL, whose devices receive a part of their own model
        [2.3, 1.4, 1.1, 1.0, 1.05, 1.1, 1.15],
    ],
)
def test_training_that_works_is_left_in_peace(losses):
    assert diagnose(lines_of(*losses), EXPECTED) == {}


def test_a_loss_that_stays_where_guessing_is():
    found = diagnose(lines_of(2.33, 2.31, 2.30, 2.31, 2.30), EXPECTED)
    assert list(found) == ["chance"]
    assert "2.300 after 5 rounds, no better than guessing (ln 10 = 2.303)" in found["chance"]
    assert "lower train.learning_rate (now 0.1) or train.max_gradient_norm (now unset)" in found["chance"]


def test_a_loss_that_rises():
    found = diagnose(lines_of(2.3, 1.0, 0.9, 0.9, 1.4, 1.6, 1.8), EXPECTED)
    assert list(found) == ["rises"]
    assert "The training loss rises: 1.600, after 0.933 at its lowest" in found["rises"]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 3.4e38])
def test_a_loss_that_is_no_number_or_absurd(loss):
    assert list(diagnose(lines_of(2.3, 1.0, 0.9, 0.9, 1.0, loss), EXPECTED)) == ["diverged"]


def test_devices_on_which_training_diverged_are_named():
    line = {"failed": {"b": "Local training diverged (loss nan) at learning rate 0.1", "c": "The disk is full."}}
    found = diagnose(lines_of(1.0, **line), Expected(10, 0.05, max_gradient_norm=5.0))
    expected = "Training diverged on b: lower train.learning_rate (now 0.05) or train.max_gradient_norm (now 5)."
    assert found == {"diverged": expected}


def test_a_round_without_a_usable_reply():
    found = diagnose(lines_of(None, replies=0, failed={"b": "Full disk.", "a": "No photos."}), EXPECTED)
    assert found == {"replies": "No client gave a usable reply; a: No photos."}
    assert diagnose([], EXPECTED) == {}


@pytest.mark.parametrize(
    ("assignment", "said"),
    [({}, "No clusters after 5 rounds"), ({"a": 1, "b": 1}, "All 2 clients are in one cluster after 5 rounds")],
)
def test_clusters_that_are_not_there(assignment, said):
    lines = lines_of(1.0, 0.9, 0.8, 0.7, 0.6, assignment=assignment)
    assert said in diagnose(lines, Expected(10, 0.1, num_clusters=4))["clusters"]
    assert diagnose(lines[:4], Expected(10, 0.1, num_clusters=4)) == {}
    assert diagnose(lines, EXPECTED) == {}


@pytest.mark.parametrize(("option", "wanted"), [("3", 3), ("auto", 1)])
def test_one_cluster_is_no_surprise_where_the_method_chooses_how_many(option, wanted):
    settings = load_settings(None, [f"strategy.num_clusters={option}"])
    assert what_to_expect(settings, build_strategy(settings)).num_clusters == wanted


def test_what_goes_on_is_said_once():
    lines = lines_of(*[math.log(10)] * 8)
    said = [new_warnings(lines[:t], EXPECTED) for t in range(1, 9)]
    assert [len(texts) for texts in said] == [0, 0, 0, 0, 1, 0, 0, 0]
    record = [{**line, "warnings": texts} for line, texts in zip(lines, said, strict=True)]
    assert all_warnings(record) == [f"Round 5: {said[4][0]}"]
    assert all_warnings([{"round": 1}]) == []


def fleet(rounds=6, **devices):
    """Lines of ``rounds`` rounds: each device with (accuracy as sent, after training[, test samples[, seconds]])."""
    lines = []
    for t in range(1, rounds + 1):
        of = {name: [v(t) if callable(v) else v for v in values] for name, values in devices.items()}
        by_client = {
            name: {"accuracy": v[0], "accuracy_trained": v[1], "tested": v[2] if len(v) > 2 else 100}
            for name, v in of.items()
        }
        more = {"seconds_by_client": {name: v[3] for name, v in of.items() if len(v) > 3}, "accuracy_micro": 0.8}
        assignment = dict.fromkeys(devices, 0) | {"other": 1}
        line = {"round": t, "replies": 4, "failed": {}, "loss": 0.5, "assignment": assignment, "tested": 400}
        lines.append({**line, **more, "by_client": by_client})
    return lines


def test_a_device_for_which_its_clusters_model_is_far_worse_than_its_own():
    lines = fleet(a=(0.9, 0.95), b=(0.85, 0.9), c=(0.167, 0.92))
    found = diagnose(lines, EXPECTED)
    assert list(found) == ["misplaced c"]
    assert "c: the model of its cluster, 0, is far worse for it (accuracy 0.17) than what" in found["misplaced c"]
    assert "(0.92, where half of the others change by +0.05 or less). Look" in found["misplaced c"]
    one = [{**line, "assignment": dict.fromkeys("abc", 0)} for line in lines]
    assert "the model that it is sent is far worse for it" in diagnose(one, EXPECTED)["misplaced c"]


@pytest.mark.parametrize(
    "lines",
    [
        fleet(rounds=4, a=(0.9, 0.95), b=(0.85, 0.9), c=(0.167, 0.92)),  # too early
        fleet(a=(0.9, 0.95), c=(0.167, 0.92)),  # among two, which one stands out?
        fleet(
            a=(0.5, 0.95), b=(0.5, 0.9), c=(0.3, 0.92)
        ),  # data differ from device to device, and one model is for all
        fleet(a=(0.9, 0.95), b=(0.85, 0.9), c=(0.5, 0.9, 6)),  # six test samples
        fleet(a=(0.9, 0.95), b=(0.85, 0.9), c=(0.167, 0.2)),  # its data are hard, whichever model it has
        fleet(a=(0.9, 0.95), b=(0.85, 0.9), c=(lambda t: 0.2 if t == 6 else 0.9, 0.95)),  # once
    ],
)
def test_a_device_that_only_looks_misplaced(lines):
    assert diagnose(lines, EXPECTED) == {}


def test_a_device_that_each_round_waits_for():
    quick = (0.9, 0.95, 100, lambda t: 4.0 + t % 2)
    found = diagnose(fleet(a=quick, b=quick, c=(0.9, 0.95, 100, 12.0)), EXPECTED)
    assert list(found) == ["last c"]
    said = "c was the last in each of the last 5 rounds: 12 s, where all others had answered after 4 s."
    assert found["last c"].startswith(said)


def test_devices_whose_speeds_differ_by_much_are_told_of_with_the_setting_to_change():
    lines = fleet(rounds=2, a=(0.9, 0.95, 100, 4.0), b=(0.9, 0.95, 100, 5.0), c=(0.9, 0.95, 100, 40.0))
    said = "Your devices differ by 10×: a round waits 40 s for the slowest, where half of them have answered after 5 s."
    assert diagnose(lines, EXPECTED)["speeds"].startswith(said)
    for key in ("late", "steps"):  # they are not waited for, or do less already
        lines[-1][key] = {"c": 2}
        assert diagnose(lines, EXPECTED) == {}
        del lines[-1][key]
    assert diagnose(lines[:1], EXPECTED) == {}
    lines[-1]["seconds_by_client"]["c"] = 5.0  # in one round alone
    assert diagnose(lines, EXPECTED) == {}


@pytest.mark.parametrize(
    ("slow", "next_one"),
    [
        (lambda t: 5.8, 5.0),  # by less than two seconds
        (lambda t: 50.0, 40.0),  # by less than half
        (lambda t: 3.0 if t == 4 else 20.0, 5.0),  # not in every round
        (lambda t: 20.0 if t % 2 else 5.0, lambda t: 5.0 if t % 2 else 20.0),  # in turn with another
    ],
)
def test_a_device_that_is_somewhat_slower(slow, next_one):
    lines = fleet(a=(0.9, 0.95, 100, 3.0), b=(0.9, 0.95, 100, next_one), c=(0.9, 0.95, 100, slow))
    assert {*diagnose(lines, EXPECTED)} <= {"speeds"}
    # nor among two, nor where a round had too few replies
    assert diagnose(fleet(a=(0.9, 0.95, 100, 3.0), c=(0.9, 0.95, 100, 30.0)), EXPECTED) == {}


@pytest.mark.parametrize(
    ("loss", "accuracy", "tested", "warned"),
    [
        (1.0, 0.11, 400, True),
        (1.0, 0.3, 400, False),
        (1.0, 0.11, 20, False),  # too few samples to tell
        (2.3, 0.11, 400, False),  # the loss is at chance, too, and that is said
        (2.1, 0.11, 400, False),  # it has begun to fall
    ],
)
def test_an_accuracy_that_stays_at_chance_while_the_loss_falls(loss, accuracy, tested, warned):
    lines = lines_of(*[loss] * 6, accuracy_micro=accuracy, tested=tested)
    found = diagnose(lines, EXPECTED)
    assert ("accuracy" in found) == warned
    if warned:
        assert "The accuracy is 0.110 after 6 rounds, no better than guessing (1 in 10)" in found["accuracy"]
    assert "accuracy" not in diagnose(lines[:4], EXPECTED)
    assert "accuracy" not in diagnose([{**line, "accuracy_micro": None} for line in lines], EXPECTED)


def test_devices_with_another_release():
    found = diagnose(lines_of(1.0, other_releases={"b": "0.1.0", "a": "0.0.9"}), EXPECTED)
    said = "Another release of Bouquet than the server's is installed on a (0.0.9), b (0.1.0)."
    assert found == {"releases": said}


def test_what_comes_and_goes_is_said_once_and_old_lines_are_let_go():
    lines, said = [], []
    for t, line in enumerate(fleet(rounds=40, a=(0.9, 0.95), b=(0.85, 0.9), c=(0.167, 0.92))):
        if t % 4 == 3:
            line["by_client"] = {}
        add(lines, line)
        said += [(t + 1, text) for text in new_warnings(lines, EXPECTED)]
        lines[-1]["diagnosis"] = diagnose(lines, EXPECTED)
    assert [t for t, _ in said] == [5]
    assert "by_client" not in lines[0]
    assert all("by_client" in line for line in lines[-5:])


MAE = Score("mae", "MAE", "µg/m³", higher_is_better=False)
WHOLE = Score("utility", "utility")  # of an own task; higher is better, and no share
FALLING = [2.3 * 0.823**k for k in range(15)]  # to .15 in the fifteenth round
UNTIL_NINTH = [0.2, 0.3, 0.4, 0.45, 0.5, 0.53, 0.56, 0.58, 0.6]
ERRORS = [40.0, 36.0, 33.0, 31.0, 30.0, 29.0, 28.0, 27.0, 26.0]


def still(scores, losses, tested=100, score=ACCURACY):
    return [
        {"round": k + 1, "replies": 3, "loss": loss, score.of("micro"): value, "tested": tested, **score.facts()}
        for k, (value, loss) in enumerate(zip(scores, losses, strict=True))
    ]


def expected(score):
    return Expected(classes=10 if score == ACCURACY else 0, learning_rate=0.05, score=score)


@pytest.mark.parametrize(
    ("scores", "score", "since"),
    [
        (UNTIL_NINTH + [0.6] * 6, ACCURACY, "accuracy stands still since round 9 (0.600 there, 0.600 now)"),
        ([*UNTIL_NINTH, 0.58, 0.605, 0.59, 0.6, 0.58, 0.59], ACCURACY, "round 9 (0.600 there, 0.590 now)"),
        (UNTIL_NINTH + [0.5] * 6, ACCURACY, "round 9 (0.600 there, 0.500 now)"),  # it falls
        ([*ERRORS, 26.0, 26.4, 25.9, 27.0, 26.2, 26.1], MAE, "MAE stands still since round 9 (26 µg/m³ there, 26.1"),
        ([-x for x in ERRORS] + [-26.0] * 6, WHOLE, "utility stands still since round 9 (-26 there, -26 now)"),
    ],
)
def test_a_loss_that_falls_while_the_score_stands_still_is_said(scores, score, since):
    lines = still(scores, FALLING, score=score)
    found = diagnose(lines, expected(score))
    assert since in found["still"]
    assert "The training loss falls (0.596 → 0.185)" in found["still"]
    assert "still" not in diagnose(lines[:-1], expected(score))  # five rounds are too early
    kept = []
    for line in lines:
        add(kept, line)
    assert diagnose(kept, expected(score)) == found


@pytest.mark.parametrize(
    ("scores", "losses", "tested", "score"),
    [
        (UNTIL_NINTH + [0.6] * 5 + [0.62], FALLING, 100, ACCURACY),  # it still gains
        (ERRORS + [26.0] * 5 + [25.5], FALLING, 100, MAE),
        (UNTIL_NINTH + [0.6] * 6, [*FALLING[:9], *[FALLING[8]] * 6], 100, ACCURACY),  # the loss stands still, too
        (UNTIL_NINTH + [0.6] * 6, [1.0] * 15, 100, ACCURACY),
        (UNTIL_NINTH + [0.6] * 6, FALLING[:9] + [FALLING[8] * 0.97**k for k in range(6)], 100, ACCURACY),  # slowly
        (UNTIL_NINTH + [0.6] * 6, [2.3 * 0.6**k for k in range(15)], 100, ACCURACY),  # from next to nothing to nothing
        (UNTIL_NINTH + [0.6] * 6, [-1.0] * 9 + [-0.9] * 6, 100, ACCURACY),  # below zero it rises
        ([0.2, 0.4, 0.97] + [0.97] * 12, FALLING, 100, ACCURACY),  # nobody expects more
        (UNTIL_NINTH + [0.6] * 6, FALLING, 20, ACCURACY),  # too few samples to tell
        ([0.6] * 8, FALLING[:8], 100, ACCURACY),  # too early
    ],
)
def test_runs_whose_loss_and_score_go_together_are_left_in_peace(scores, losses, tested, score):
    assert "still" not in diagnose(still(scores, losses, tested, score), expected(score))


@pytest.mark.parametrize(
    ("naive", "said"),
    [
        ({"a": 31, "b": 0.029, "c": 44, "d": 12}, ["unit b"]),  # in mg
        ({"a": 31, "b": 29_000, "c": 44, "d": 12}, ["unit b"]),  # in ng
        ({"a": 31, "b": 0.029, "c": 44, "d": 0.012, "e": 25}, ["unit b", "unit d"]),
        ({"a": 31, "b": 0.4, "c": 39, "d": 12}, []),  # a quiet place
        ({"a": 31, "b": 0.029}, []),  # who of the two is it?
        ({"a": 31, "b": None, "c": 0, "d": math.inf, "e": 12}, []),
    ],
)
def test_a_device_with_another_unit_is_told_by_what_is_foretold_without_a_model(naive, said):
    lines = lines_of(0.5, by_client={device: {"mae": 1.0, "naive": value} for device, value in naive.items()})
    found = diagnose(lines, Expected(classes=0, learning_rate=0.1, score=MAE))
    assert list(found) == said
    rising = replace(MAE, higher_is_better=True)  # such as R², which has no unit
    assert not diagnose(lines, Expected(classes=0, learning_rate=0.1, score=rising))
    if said:
        assert "b: without a model its MAE would be " in found["unit b"]
        assert "devices' 31 µg/m³: is its unit another one" in found["unit b"] or len(said) > 1


def test_what_devices_say_of_their_data_is_said_once():
    lines = lines_of(2.3, 1.9, 1.2, 0.8)
    for line, by_client in zip(
        lines,
        [
            {},
            {"a": {"unknown_classes": ["blight"], "warnings": ["It is dark."]}, "b": {"left_out": 2.0}},
            {"b": {"unknown_classes": ["blight", "fire"], "left_out": 2.0}},  # a was not asked
            {"a": {}, "b": {}},
        ],
        strict=True,
    ):
        line["by_client"] = by_client
    first = "Photos or rows that cannot be read are left out, which the devices' logs name: b 2."
    assert new_warnings(lines[:1], EXPECTED) == []
    assert new_warnings(lines[:2], EXPECTED) == [
        "a: a class that this run does not know: blight.",
        "a: It is dark.",
        first,
    ]
    both = [
        "2 devices have a class that this run does not know: blight.",
        "b: a class that this run does not know: fire.",
    ]
    assert new_warnings(lines[:3], EXPECTED) == both
    assert list(diagnose(lines[:3], EXPECTED).values()) == [
        *both,
        "a: It is dark.",
        first,
    ]
    assert diagnose(lines, EXPECTED) == {}


def test_one_devices_many_words_take_the_place_of_nobody_elses():
    lines = lines_of(2.3, 1.9, 1.2)
    for number, line in enumerate(lines):
        loud = {
            "unknown_classes": [f"{number}.{k}" for k in range(20)],
            "warnings": [f"{number}.{k}" for k in range(20)],
        }
        line["by_client"] = {"a": loud, **{f"d{k:02}": {"warnings": [f"dark {k}"]} for k in range(11)}}
    said = new_warnings(lines[:1], EXPECTED)
    assert said[0] == "a: a class that this run does not know: 0.0. And 19 more of the kind."
    assert said[1:3] == ["a: 0.0 And 19 more of the kind.", "d00: dark 0"]
    assert [text for text in said if "dark" in text] == [f"d{k:02}: dark {k}" for k in range(9)]
    assert said[-1] == "So 2 more devices, whose own pages have it."
    assert new_warnings(lines[:2], EXPECTED) == new_warnings(lines, EXPECTED) == []  # other words, as many


def test_what_is_judged_is_no_single_devices_word():
    lines = []
    for number in range(1, 8):
        honest = {f"d{k}": {"loss": 0.5 / number, "accuracy": 0.9, "tested": 20} for k in range(3)}
        liar = {"loss": 1e38, "accuracy": 0.0, "tested": 10**9}
        told = {
            "round": number,
            "replies": 4,
            "loss": 1e38,
            "accuracy_micro": 0.0,
            "accuracy_macro": 0.7,
            "tested": 1e9,
        }
        add(lines, {**told, "failed": {}, "by_client": {**honest, "liar": liar}})
    assert diagnose(lines, EXPECTED) == {}
    assert lines[-1]["tested"] == 80
