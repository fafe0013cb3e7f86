"""A run whose devices stand in every state, as its status is read."""

STARTED = 1_700_000_000.0


def line(number, **changes):
    numbers = {"samples": 48.0, "loss": 0.5, "accuracy": 0.1 * number, "accuracy_trained": 0.9}
    return {
        "round": number,
        "replies": 1,
        "failures": 1,
        "failed": {"window-pi": "The image up/broken.png cannot be read <b>."},
        "clusters": 1,
        "purity": None,
        "ari": None,
        "loss": 0.5,
        "accuracy_micro": 0.1 * number,
        "accuracy_macro": 0.1 * number,
        "accuracy_trained_macro": 0.9,
        "bytes_up": 100,
        "bytes_down": 200,
        "bytes_by_client": {"garden-pi": [100, 150], "window-pi": [0, 50]},
        "seconds": 10.0,
        "assignment": {"garden-pi": 0},
        "by_client": {"garden-pi": {**numbers, "left_out": 2.0}},
        "absent": ["door-pi"],
        **changes,
    }
