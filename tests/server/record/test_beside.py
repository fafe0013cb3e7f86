"""The sentence that answers an owner: was it worth it to each device?"""

from bouquet.common.task.score import ACCURACY, Score
from bouquet.server.record.beside import cells, of_device, sentence

MAE = Score("mae", "MAE", "cm", higher_is_better=False)


def test_it_names_who_is_not_better_off_than_alone():
    found = {
        "window-pi": {"own": 0.8, "alone": 0.85, "received": 0.7},
        "door-pi": {"own": 0.9, "alone": 0.9},
        "garden-pi": {"own": 0.9, "alone": 0.8, "received": 0.5},
    }
    assert sentence(found, ACCURACY) == (
        "1 of 3 devices is better off than alone; as well off: door-pi; worse off: window-pi. "
        "Mean accuracy: 0.867 in use, 0.850 alone, 0.600 as received."
    )


def test_of_an_error_less_is_better_and_it_has_its_unit():
    found = {"a": {"own": 2.0, "alone": 3.0}, "b": {"own": 2.0, "alone": 4.0}}
    assert sentence(found, MAE) == "2 of 2 devices are better off than alone. Mean MAE: 2 cm in use, 3.5 cm alone."


def test_of_many_devices_a_few_are_named():
    found = {f"pi-{k}": {"own": 0.1, "alone": 0.2} for k in range(8)}
    assert "worse off: pi-0, pi-1, pi-2, pi-3, pi-4 and 3 more." in sentence(found, ACCURACY)


def test_who_does_not_compare_has_nothing_to_say():
    assert sentence({}, ACCURACY) == ""
    assert of_device({"accuracy": 0.5, "accuracy-own": 0.5}, ACCURACY) == {}
    assert cells({}, ACCURACY) == ["–", "–", "–"]
