"""The sentence that answers an owner: was it worth it to each device?"""

import pytest

from bouquet.common.task.score import ACCURACY, Score
from bouquet.server.record.gains import cells, gain, of_device, sentence, verdict

MAE = Score("mae", "MAE", "cm", higher_is_better=False)


def test_it_leads_with_the_gain_and_names_who_is_not_better_off():
    found = {
        "window-pi": {"own": 0.8, "alone": 0.85, "received": 0.7, "tested": 60},
        "door-pi": {"own": 0.9, "alone": 0.9},
        "garden-pi": {"own": 0.9, "alone": 0.8, "received": 0.5},
    }
    assert sentence(found, ACCURACY) == (
        "1.7 points better than alone. Mean accuracy: 0.867 in use, 0.850 alone. 1 of 3 devices is better off; "
        "as well off: door-pi; worse off: window-pi (by 3 of 60 test samples, which may be chance)."
    )


@pytest.mark.parametrize(("tested", "said"), [(100, "which may be chance"), (120, "worse off: a."), (0, "off: a.")])
def test_a_difference_that_no_test_could_tell_is_said_to_be_chance(tested, said):
    """Five samples of a hundred, six of a hundred and twenty: 2 / 2⁵ is above 5 %, 2 / 2⁶ below."""
    assert said in sentence({"a": {"own": 0.8, "alone": 0.85, "tested": tested}}, ACCURACY)


@pytest.mark.parametrize(("second", "said"), [(2, "than alone, which may be chance. "), (3, "than alone. ")])
def test_so_is_a_gain_of_the_whole_fleet_of_fewer_than_six_samples(second, said):
    found = {name: {"own": 0.9, "alone": 0.9 - ahead / 30, "tested": 30} for name, ahead in (("a", 3), ("b", second))}
    assert said in sentence(found, ACCURACY)
    assert verdict(found, ACCURACY).is_gain is (True if second == 3 else None)


@pytest.mark.parametrize("own", [1e38, -1e38])
def test_one_device_alone_says_for_nobody_that_it_was_worth_it(own):
    honest = {f"d{k}": {"own": 2.0 + own / 1e38, "alone": 2.0} for k in range(3)}
    found = verdict({**honest, "liar": {"own": -own, "alone": 0.0}}, MAE)
    assert found.lead.endswith("alone, but not on most devices")
    assert found.is_gain is None


def test_the_models_as_received_are_named_where_they_were_better():
    found = {"a": {"own": 0.8, "alone": 0.8, "received": 0.9}}
    assert sentence(found, ACCURACY) == (
        "As good as alone. Mean accuracy: 0.800 in use, 0.800 alone, 0.900 as received. 0 of 1 devices are better "
        "off; as well off: a."
    )
    assert verdict(found, ACCURACY).is_gain is None


def test_of_an_error_less_is_better_and_it_has_its_unit():
    found = {"a": {"own": 2.0, "alone": 3.0, "tested": 5}, "b": {"own": 5.0, "alone": 4.0, "tested": 5}}
    assert sentence(found, MAE) == (
        "As good as alone. Mean MAE: 3.5 cm in use, 3.5 cm alone. 1 of 2 devices is better off; worse off: b."
    )
    assert gain(found["a"], MAE) == "1 cm better than alone"
    assert gain(found["b"], MAE) == "1 cm worse than alone"


def test_of_many_devices_a_few_are_named():
    found = {f"pi-{k}": {"own": 0.1, "alone": 0.2} for k in range(8)}
    assert "worse off: pi-0, pi-1, pi-2, pi-3, pi-4 and 3 more." in sentence(found, ACCURACY)
    assert verdict(found, ACCURACY).worse == tuple(found)


def test_who_does_not_compare_has_nothing_to_say():
    assert sentence({}, ACCURACY) == ""
    assert of_device({"accuracy": 0.5, "accuracy-own": 0.5}, ACCURACY, 9) == {}
    assert cells({}, ACCURACY) == ["–", "–", "–"]
