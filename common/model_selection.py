"""Which model a device answers with (``[personal] serve``), and what of it crosses the wire and is in the record.

With ``serve = "auto"`` the fleet decides between the model that devices are sent and the mixture of all that they have.
No device could alone: on its handful of samples an honest difference drowns in noise. So each keeps a part of its
training data, another one in each round, out of that round's training, and compares the errors there of the received
model and of that with the trained one. The server adds up the differences (`bouquet.strategies.base.filters.serving`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

REFERENCE, RECEIVED, TRAINED = "alone", "received", "trained"
NAMES = (REFERENCE, RECEIVED, TRAINED, "personal")  # the models that a device may have, in the order on the wire
MIXTURE = "mixture"
SERVED_NAMES = (*NAMES, MIXTURE)
HELD_OUT = 0.2  # of the training data, at least a sample: what ``serve = "mixture"`` judges the model alone by
FOLDS = 20  # of the training data, at most: one of them is judged on in a round

# Key of a reply's config: by how much more the mixture errs on the fold than the received model, in hundredths.
REPORT = "serving"
SERVE = "serve"  # key of a message's config: RECEIVED or MIXTURE, what the fleet does better with; who is told counts
CHOSEN = "chosen"  # metric: what is served, as its place in SERVED_NAMES
MIXED = "mixed"  # metric: a bit for each of NAMES that is in the mixture, and the next where REFERENCE was left out
VOTE = "in-use-vote"  # key of a reply's config: 1 where its model errs more than the one in use, -1 where less, else 0
HELD = "held"  # key of a message's config: the last round of this device's whose model held with others; 0: none
IN_USE = "in-use"  # metric: where an older model stays in use, the round that it is of; 0: of an earlier run


def reported(config: Mapping[str, Any]) -> float | None:
    """A reply's `REPORT`; None where there is none, or what no honest device sends."""
    report = config.get(REPORT)
    return float(report) if isinstance(report, int) and not isinstance(report, bool) else None


# --- what is served, in the record ----------------------------------------------------------------------------------


def mixed_bits(kinds: Iterable[str], is_left_out: bool) -> int:
    """The number of `MIXED`: which of `NAMES` a mixture holds, and whether the model alone was left out of it."""
    return sum(1 << NAMES.index(kind) for kind in kinds) + (is_left_out << len(NAMES))


def served(metrics: Mapping[str, float]) -> dict[str, Any]:
    """What a device says that it serves, for the record; empty where it serves the method's own model.

    ``kept`` is one of `SERVED_NAMES`, ``mixed`` the models of a mixture, and ``alone_left_out`` is 1 where the model
    alone is none of them because the received one was judged better. ``in_use`` is the round of an older model that
    stays in use instead, 0 for one of an earlier run.
    """
    place, bits, older = metrics.get(CHOSEN), metrics.get(MIXED), metrics.get(IN_USE)
    choice: dict[str, Any] = {} if older is None else {"in_use": int(older)}
    if place is None or not 0 <= place < len(SERVED_NAMES):
        return choice
    choice["kept"] = SERVED_NAMES[int(place)]
    if bits is None or choice["kept"] != MIXTURE or not 0 < bits < 2 << len(NAMES):
        return choice
    choice["mixed"] = [kind for k, kind in enumerate(NAMES) if int(bits) >> k & 1]
    return choice | ({"alone_left_out": 1} if int(bits) >> len(NAMES) else {})


def served_text(said: Mapping[str, Any]) -> str:
    """What `served` gave as people read it: ``received + trained, without alone``; empty where nothing was said."""
    if (older := said.get("in_use")) is not None:
        return f"its model of {f'round {older}' if older else 'an earlier run'}, which stays in use"
    text = " + ".join(said.get("mixed") or ()) or str(said.get("kept") or "")
    return f"{text}, without {REFERENCE}" if said.get("alone_left_out") else text
