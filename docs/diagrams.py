"""Draws the pictures of these pages: ``python docs/diagrams.py`` writes them beside itself."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="14">
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#333"/></marker></defs>
<rect width="{w}" height="{h}" fill="white"/>
"""
WIDTH, HEIGHT = 190, 56
COLOURS = ("#0072b2", "#e69f00", "#009e73")  # one a kind of device; told apart by the colour-blind, too (Okabe and Ito)
GREY = "#888888"
# Package → the middle of its box, and what lives there.
PACKAGES = {
    "bouquet": (400, 40, "the command line"),
    "experiments": (400, 140, "simulation, comparison"),
    "server": (180, 240, "rounds, record, service"),
    "client": (620, 240, "the device"),
    "strategies": (180, 340, "the methods"),
    "common": (400, 440, "what both ends share"),
}
# What `bouquet` and `experiments` may import beside these is all that is below them.
IMPORTS = [
    ("bouquet", "experiments"),
    ("experiments", "server"),
    ("experiments", "client"),
    ("server", "strategies"),
    ("strategies", "common"),
    ("client", "common"),
]
ENDS = {
    "server.run.loop": 110,
    "strategies": 300,
    "server.service": 490,
    "client.agent": 740,
    "client.app": 960,
    "procedure": 1150,
}
# From, to (the same: a note), what.
STEPS = [
    ("server.run.loop", "strategies", "configure_train"),
    ("strategies", "strategies", "sample clients, plan(state), encode"),
    ("server.run.loop", "server.service", "FleetGrid.push_messages"),
    ("server.service", "client.agent", "Task, chunks: gRPC, mutual TLS"),
    ("client.agent", "client.app", "the trainer forks for it"),
    ("client.app", "procedure", "Session: model, data, state"),
    ("procedure", "procedure", "test, train, keep"),
    ("procedure", "client.app", "parameters, numbers"),
    ("client.app", "client.agent", "a file; the fork ends"),
    ("client.agent", "server.service", "Reply, chunks"),
    ("server.service", "client.agent", "Received"),
    ("server.service", "server.run.loop", "as it arrives, until the deadline"),
    ("server.run.loop", "strategies", "aggregate_train"),
    ("strategies", "strategies", "check, update(state, replies)"),
    ("server.run.loop", "server.run.loop", "record a line, checkpoint"),
]


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Words whose middle is at x."""
    return f'<text x="{x}" y="{y}" text-anchor="middle" fill="#222" {more}>{escape(words)}</text>\n'


def box(x: float, y: float, width: float, height: float) -> str:
    """A box around its middle."""
    return (
        f'<rect x="{x - width / 2}" y="{y - height / 2}" width="{width}" height="{height}" rx="6" fill="#e8f0f5" '
        'stroke="#33708f"/>\n'
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """From the first point to the second."""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#333" marker-end="url(#tip)"/>\n'


def packages() -> str:
    """Which package imports which."""
    drawn = HEAD.format(w=800, h=490)
    for above, below in IMPORTS:
        (x1, y1, _), (x2, y2, _) = PACKAGES[above], PACKAGES[below]
        side = 60 if x2 > x1 else -60 if x2 < x1 else 0
        drawn += arrow(x1 + side, y1 + HEIGHT / 2, x2 - side, y2 - HEIGHT / 2)
    for name, (x, y, what) in PACKAGES.items():
        drawn += box(x, y, WIDTH, HEIGHT) + text(x, y - 5, name, 'font-weight="bold"')
        drawn += text(x, y + 16, what, 'font-size="12"')
    return drawn + "</svg>\n"


def sequence() -> str:
    """A round, from top to bottom."""
    height = 80 + 38 * len(STEPS)
    drawn = HEAD.format(w=1270, h=height)
    for name, x in ENDS.items():
        drawn += f'<line x1="{x}" y1="40" x2="{x}" y2="{height - 10}" stroke="#aaa" stroke-dasharray="4 4"/>\n'
        drawn += box(x, 28, 170, 32) + text(x, 33, name, 'font-weight="bold"')
    for i, (sender, receiver, what) in enumerate(STEPS):
        y, x1, x2 = 84 + 38 * i, ENDS[sender], ENDS[receiver]
        if sender == receiver:
            width = 16 + 8 * len(what)
            x1 = max(x1, width / 2 + 4)
            drawn += f'<rect x="{x1 - width / 2}" y="{y - 15}" width="{width}" height="24" rx="4" fill="#fff4d6"/>\n'
            drawn += text(x1, y + 1, what, 'font-size="16"')
        else:
            drawn += arrow(x1, y, x2, y) + text((x1 + x2) / 2, y - 6, what, 'font-size="16"')
    return drawn + "</svg>\n"


def circle(x: float, y: float, colour: str, radius: float = 12) -> str:
    """A device."""
    return f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colour}"/>\n'


def model(x: float, y: float, colours: tuple[str, ...]) -> str:
    """A model around its middle: a bar a layer, the last one on top."""
    bars = ""
    for i, colour in enumerate(reversed(colours)):
        bars += f'<rect x="{x - 22}" y="{y - 18 + 13 * i}" width="44" height="10" rx="2" fill="{colour}"/>\n'
    return bars


def square(x: float, y: float, kind: int, colour: str) -> str:
    """What a device sees: one picture, turned as its kind sees it."""
    return (
        f'<g transform="rotate({120 * kind} {x} {y})"><rect x="{x - 14}" y="{y - 14}" width="28" height="28" rx="4" '
        f'fill="white" stroke="{colour}" stroke-width="3"/>'
        f'<path d="M{x - 5} {y + 8}V{y - 8}H{x + 6}M{x - 5} {y}H{x + 3}" stroke="{colour}" stroke-width="3" '
        'fill="none"/>'
        "</g>\n"
    )


def fleet() -> str:
    """What clustering does for a fleet: one model for all, and one model a kind."""
    drawn = HEAD.format(w=860, h=290)
    for left, title, below in (
        (0, "one model for all", "fits no device well"),
        (440, "Bouquet: one model a kind", "the kinds are found, nobody names them"),
    ):
        drawn += text(left + 210, 30, title, 'font-weight="bold" font-size="17"')
        for i in range(6):
            x, kind = left + 35 + 70 * i, i // 2
            top = left + 210 if left == 0 else left + 70 + 140 * kind
            drawn += arrow(top + (x - top) * 0.12, 112, x, 176)
            drawn += square(x, 200, kind, COLOURS[kind])
        for kind in range(3):
            if left:
                drawn += model(left + 70 + 140 * kind, 84, (COLOURS[kind],) * 3)
        if not left:
            drawn += model(210, 84, (GREY,) * 3)
        drawn += text(left + 210, 244, "six devices, of three kinds", 'font-size="13"')
        drawn += text(left + 210, 272, below, 'font-style="italic"')
    return drawn + "</svg>\n"


BLUE, ORANGE, GREEN = COLOURS
# What a panel draws: devices at a place, models at a place by their layers, arrows, and lines of words below.
SPOTS = [(60, 80), (95, 120), (70, 140), (190, 75), (215, 110), (180, 125)]


def devices(*colours: str) -> str:
    """Six devices in two places."""
    return "".join(circle(x, y, colour, 9) for (x, y), colour in zip(SPOTS, colours, strict=True))


TWO = (BLUE,) * 3 + (ORANGE,) * 3
CENTERS = model(75, 120, (BLUE,) * 3) + model(200, 120, (ORANGE,) * 3)
METHODS = {
    "fesem": [
        (devices(*[GREY] * 6), "each device sends", "the model that it trained"),
        (devices(*TWO), "each joins the center", "that its model is nearest to"),
        (CENTERS, "a center is the mean of", "its devices, and is sent back"),
    ],
    "dc-pfl": [
        (devices(*[GREY] * 6), "one group, until the loss", "stops falling fast"),
        (devices(*TWO), "a split is tried: it stays", "if devices do better with it"),
        (
            model(75, 110, (GREY, BLUE, BLUE)) + model(200, 110, (GREY, ORANGE, ORANGE)),
            "layers that hardly differ (grey)",
            "travel every third round",
        ),
    ],
    "fedac": [
        (devices(*[GREY] * 6), "each device has a model", "of its own, which it sends"),
        (devices(*TWO), "the server finds clusters,", "and how many there are"),
        (
            model(75, 110, (GREEN, BLUE, BLUE)) + model(200, 110, (GREEN, ORANGE, ORANGE)),
            "a device stays near its center,",
            "and near an embedding of all (green)",
        ),
    ],
    "fedtsdp": [
        (devices(*TWO), "clusters by what models say", "of public samples"),
        (devices(*(BLUE, BLUE, GREEN, ORANGE, ORANGE, GREY)), "then finer ones,", "by their weights"),
        (
            model(75, 110, (BLUE, BLUE, GREEN)) + model(200, 110, (BLUE, BLUE, ORANGE)),
            "the last layers become",
            "each device's own",
        ),
    ],
    "gradient-loss": [
        (
            CENTERS + arrow(100, 110, 128, 76) + arrow(175, 110, 147, 76) + circle(137, 62, GREY),
            "the server sends a device",
            "all K models",
        ),
        (
            model(75, 120, (BLUE,) * 3) + circle(137, 62, BLUE) + arrow(100, 110, 128, 76),
            "it picks one, by loss and by",
            "the direction of its gradient",
        ),
        (
            model(137, 130, (BLUE,) * 3) + circle(137, 62, BLUE) + arrow(137, 78, 137, 106),
            "it trains that one, and",
            "sends it back",
        ),
    ],
}


def method(name: str) -> str:
    """A method in three panels."""
    drawn = HEAD.format(w=860, h=225)
    for i, (picture, *words) in enumerate(METHODS[name]):
        drawn += (
            f'<g transform="translate({290 * i} 0)">\n<rect x="5" y="5" width="268" height="165" rx="8" fill="none" '
        )
        drawn += 'stroke="#bbb"/>\n' + text(22, 30, str(i + 1), 'font-weight="bold" font-size="17"') + picture
        for j, line in enumerate(words):
            drawn += text(139, 192 + 19 * j, line)
        drawn += "</g>\n"
    return drawn + "</svg>\n"


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "packages.svg").write_text(packages(), encoding="utf-8")
    (folder / "round.svg").write_text(sequence(), encoding="utf-8")
    (folder / "fleet.svg").write_text(fleet(), encoding="utf-8")
    for name in METHODS:
        (folder / f"method-{name}.svg").write_text(method(name), encoding="utf-8")
