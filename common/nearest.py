"""What somebody may have meant by a name that is none."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 3
LIKE = 0.6  # least similarity, of difflib's ratio


def nearest(name: str, known: Iterable[str], otherwise: str = "there are", instead: Iterable[str] = ()) -> str:
    """``nearest are fedavg, fedac``: at most three of the ``known`` names that are like it, whatever their case.

    Those that have it in them come first. Where none is like it, ``otherwise`` and all of them, or what is ``instead``.
    """
    names = list(dict.fromkeys(known))
    plain = {one: one.lower().replace("_", "-") for one in names}
    given = name.lower().replace("_", "-")
    alike = get_close_matches(given, plain.values(), n=MOST, cutoff=LIKE)
    holding = sorted((one for one in names if len(given) > 2 and given in plain[one]), key=len)
    same = [one for one in names if plain[one] == given]
    close = sorted((one for one in names if plain[one] in alike), key=lambda one: alike.index(plain[one]))
    if similar := same or list(dict.fromkeys([*holding, *close]))[:MOST]:
        return f"nearest {'are' if len(similar) > 1 else 'is'} {', '.join(similar)}"
    return f"{otherwise} {', '.join(instead or names) or 'none'}"
