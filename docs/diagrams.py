"""Draws the two pictures of architecture.md: ``python docs/diagrams.py`` writes them beside itself."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="14">
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#333"/></marker></defs>
<rect width="{w}" height="{h}" fill="white"/>
"""
WIDTH, HEIGHT = 190, 56
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
    "bouquet.server.run.loop": 110,
    "strategies": 300,
    "bouquet.server.service": 490,
    "bouquet.client.agent": 740,
    "bouquet.client.app": 960,
    "procedure": 1150,
}
# From, to (the same: a note), what.
STEPS = [
    ("bouquet.server.run.loop", "strategies", "configure_train"),
    ("strategies", "strategies", "sample clients, plan(state), encode"),
    ("bouquet.server.run.loop", "bouquet.server.service", "FleetGrid.push_messages"),
    ("bouquet.server.service", "bouquet.client.agent", "Task, chunks: gRPC, mutual TLS"),
    ("bouquet.client.agent", "bouquet.client.app", "the trainer forks for it"),
    ("bouquet.client.app", "procedure", "Session: model, data, state"),
    ("procedure", "procedure", "test, train, keep"),
    ("procedure", "bouquet.client.app", "parameters, numbers"),
    ("bouquet.client.app", "bouquet.client.agent", "a file; the fork ends"),
    ("bouquet.client.agent", "bouquet.server.service", "Reply, chunks"),
    ("bouquet.server.service", "bouquet.client.agent", "Received"),
    ("bouquet.server.service", "bouquet.server.run.loop", "as it arrives, until the deadline"),
    ("bouquet.server.run.loop", "strategies", "aggregate_train"),
    ("strategies", "strategies", "check, update(state, replies)"),
    ("bouquet.server.run.loop", "bouquet.server.run.loop", "record a line, checkpoint"),
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
        drawn += box(x, 28, 140, 32) + text(x, 33, name, 'font-weight="bold"')
    for i, (sender, receiver, what) in enumerate(STEPS):
        y, x1, x2 = 84 + 38 * i, ENDS[sender], ENDS[receiver]
        if sender == receiver:
            width = 16 + 6.4 * len(what)
            x1 = max(x1, width / 2 + 4)
            drawn += f'<rect x="{x1 - width / 2}" y="{y - 14}" width="{width}" height="22" rx="4" fill="#fff4d6"/>\n'
            drawn += text(x1, y + 1, what, 'font-size="12"')
        else:
            drawn += arrow(x1, y, x2, y) + text((x1 + x2) / 2, y - 6, what, 'font-size="12"')
    return drawn + "</svg>\n"


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "packages.svg").write_text(packages(), encoding="utf-8")
    (folder / "round.svg").write_text(sequence(), encoding="utf-8")
