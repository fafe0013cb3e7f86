"""How far k colluding members of a cluster of n move its model in one round, under each rule of ``[protection]``.

    python -m benchmarks.capture > table.md

Honest updates of one length point the same way by half (cosine 0.5). The colluders, who know them, send one and the
same model: opposite, of the worst of many lengths below what is refused as absurd, with 10⁹ samples each; or, to be
chosen by Krum, near each other where the honest ones are not. The figure is how far the model lies from the honest
mean, in lengths of an honest update; mean over ten draws.
"""

import numpy as np

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ClientReply, Instruction
from bouquet.strategies.base.protection import ABSURD_FACTOR, Protection
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.mathematics.robust import Aggregation

MEMBERS, COLLUDERS, WIDTH, DRAWS = 10, (1, 3, 5), 500, 10
LENGTHS = (0.5, 1.0, 2.0, 5.0, 20.0, 100.0, 0.99 * ABSURD_FACTOR)
RULES = {
    "no protection": Protection(),
    "`limit_norm = 2`": Protection(limit_norm=2.0),
    **{f'`"{rule}"`': Protection(Aggregation(rule)) for rule in ("median", "trimmed-mean", "krum")},
    '`limit_norm = 2`, `"median"`': Protection(Aggregation("median"), 2.0),
}
LAYOUT = ParameterLayout.of({"w": np.zeros(WIDTH, dtype=np.float32)})


def moved(protection, colluders, draw):
    """The farthest, over the lengths, that the center lies from the honest mean."""
    rng = np.random.default_rng(draw)
    parts = rng.normal(size=(MEMBERS - colluders + 1, WIDTH))
    parts /= np.linalg.norm(parts, axis=1, keepdims=True)
    honest = parts[0] + parts[1:]
    honest /= np.linalg.norm(honest, axis=1, keepdims=True)
    mean = honest.mean(axis=0)
    return max(np.linalg.norm(center(protection, honest, -size * parts[0], colluders) - mean) for size in LENGTHS)


def center(protection, honest, bad, colluders):
    """The model of the next round, of a cluster that was at zero."""
    rows = np.vstack([honest, np.tile(bad, (colluders, 1))]).astype(np.float32)
    names = [f"c{place:02}" for place in range(MEMBERS)]
    weights = [100] * len(honest) + [10**9] * colluders
    start = Instruction({protocol.ARRAYS: protocol.Payload(np.zeros(WIDTH, dtype=np.float32))})
    received = tuple(
        ClientReply(n, i, row, LAYOUT.layers, w, {}, {})
        for i, (n, row, w) in enumerate(zip(names, rows, weights, strict=True))
    )
    screened = protection.screen(
        Replies(LAYOUT, received, dict.fromkeys(names, start)), dict.fromkeys(names, 0)
    ).replies
    return protection.aggregation.center(screened.W, screened.num_examples)[0]


def table():
    """The Markdown."""
    heads = [f"k = {k}" if k == COLLUDERS[0] else str(k) for k in COLLUDERS]
    lines = ["| rule | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(heads)]
    for name, protection in RULES.items():
        found = [np.mean([moved(protection, k, draw) for draw in range(DRAWS)]) for k in COLLUDERS]
        lines.append(
            f"| {name} | " + " | ".join(f"{value:.2g}" if value < 99.5 else f"{value:.0f}" for value in found) + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
