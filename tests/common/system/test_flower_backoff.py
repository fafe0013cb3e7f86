import time

from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects

from common.system.flower_backoff import pull_soon


def test_a_part_that_comes_late_is_there_soon_after(monkeypatch):
    monkeypatch.setattr(pull_objects, "__kwdefaults__", dict(pull_objects.__kwdefaults__))
    pull_soon()
    waited: list[float] = []
    tries = iter([ObjectUnavailableError("a"), ObjectUnavailableError("a"), None])
    monkeypatch.setattr("random.uniform", lambda low, high: waited.append(time.monotonic()) or -0.5)

    def pull(identifier: str) -> bytes:
        if (error := next(tries)) is not None:
            raise error
        return b"part"

    assert pull_objects(["a"], pull) == {"a": b"part"}
    assert len(waited) == 2
    assert pull_objects.__kwdefaults__["initial_backoff"] == 0.02
