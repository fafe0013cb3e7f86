"""Which model a device keeps, by its errors on what is held out."""

import numpy as np

from bouquet.client.rounds.model_selection import Candidate, Choosing, _Memory
from bouquet.common.model_selection import CHOSEN, NAMES
from bouquet.strategies import one_model
from tests.helpers.real_devices import Federation


def test_what_was_kept_is_held_against_the_new_choice_and_not_against_the_reference(tmp_path, monkeypatch):
    """Of 20 samples the model alone has all wrong, the one that was kept 10, and the received one none."""
    federation = Federation(tmp_path, "strategy.name=fedavg", "personal.serve=best")
    choosing = Choosing(federation.session(one_model(federation.initial)))
    alone, kept, received = (Candidate(model, model) for model in (federation.initial + i for i in range(3)))
    wrong = {id(alone): 20, id(kept): 10, id(received): 0}
    monkeypatch.setattr(choosing, "_errors", lambda one: (np.arange(20) < wrong[id(one)]).astype(float))
    choosing._choose({"received": received}, alone, _Memory(alone, kept, "trained"))
    assert NAMES[int(choosing.session.metrics[CHOSEN])] == "received"
