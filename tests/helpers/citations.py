"""Reads what pages cite of published tables, and whether they say it right.

A paragraph, a list item or a row of a table says in a comment where its figures are from, in their order:
``<!-- NAME / COLUMN / ROW; ROW @ METRIC; ROW - REFERENCE -->``. The column ``*`` is every column, ``PANEL: *`` every
one of a panel, ``A & B`` both.

What a sentence says of several rows or columns is a claim:

- ``ROW & ROW ahead of REFERENCE`` (or ``behind``) is "by 3.1 to 5.7 points", "by 5.4" or, rounded, "3 to 6": the least
  and the greatest of its differences over rows and columns, with ≈ where one is within noise;
- ``ROW ahead of REFERENCE in the mean`` is the difference of the means over the columns, with ≈ where the table tests
  it and nothing survives; ``ROW in the mean`` is ".844";
- ``ROW @ METRIC in all`` is the least and the greatest value;
- ``ROW over REFERENCE @ METRIC + METRIC`` is a share, ".38".

``p of ROW & ROW ahead of OTHER`` is "p .045", "p < .001" or, of several, "p ≤ .045". Where a table that is cited tests
its means, no other p-value stands.
"""

import re
from typing import NamedTuple

import numpy as np

CITATION = re.compile(r"<!-- ([\w-]+) / (.+?) / (.+?) -->")
P_VALUE = re.compile(r"\bp ((?:[≤<] )?\.\d+)")
FIGURE = re.compile(r"(?:≈ )?(?<![\w.+−])[+−]?\d*\.\d+(?!\w|\.\w)")


def sections(page):
    """Title → head → row → text of the tables on a published page."""
    found = {}
    for title, body in re.findall(r"^## (.+?)$\n\n((?:^\|.*\n?)+)", page, re.MULTILINE):
        heads, _, *rows = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in body.strip().splitlines()
        ]
        found[title] = {head: {row[0]: row[place] for row in rows} for place, head in enumerate(heads) if place > 0}
    return found


def lookup(tables, name, column):
    """Row → text of a column in the section that begins with ``name``; PANEL: LABEL is a column of a panel."""
    panel, _, label = column.rpartition(": ") if ": " in column else ("", "", column)
    for title, columns in tables.items():
        begins = re.match(rf"{re.escape(name)}(?! \w)\b", title)
        if begins and (title.endswith(f": {panel}") if panel else True) and label in columns:
            return columns[label]
    raise AssertionError(f"no {name!r} of {column!r}")


def tested(tables, test, column, row):
    """``≈ `` or nothing, sign and size of a published difference, ``≈ −.012 [−.020, +.004]``."""
    found = re.match(r"(≈ )?([+−])(\d*\.\d+)", lookup(tables, test, column)[row])
    return found[1] or "", found[2], float(found[3])


def expected(tables, column, item):
    """How a page writes one cited figure: ``.864``, ``40.9``, or a difference in points, ``≈ +1.2``."""
    if " - " in item:
        row, reference = item.split(" - ")
        worst = reference.endswith(" @ worst tenth")
        reference = reference.removesuffix(" @ worst tenth")
        mark, sign, mean = tested(tables, f"{'Worst tenth' if worst else 'Accuracy'} against {reference}", column, row)
        return f"{mark}{sign}{mean * 100:.1f}"
    row, _, metric = item.partition(" @ ")
    return lookup(tables, metric or "accuracy_macro", column)[row].split(" ± ")[0]


def columns_named(tables, named, metric="accuracy_macro"):
    """What ``A & B``, ``*`` and ``PANEL: *`` name, in the table's order; ``*`` is every column of every panel."""
    found = []
    for part in named.split(" & "):
        if not part.endswith("*"):
            found.append(part)
            continue
        for title, columns in tables.items():
            of_all, _, panel = title.partition(": ")
            if of_all == metric and part in ("*", f"{panel}: *"):
                found += [f"{panel}: {label}" if panel else label for label in columns]
    return found


def tests_of_means(tables):
    """(row, other) → the difference and the p of a row's claim in the mean of the columns, as they are written."""
    found = {}
    for title, columns in tables.items():
        if row := re.match("(?:Accuracy|MAE) of (.+) less that of each other row", title):
            found |= {(row[1], other): (text, columns["p"][other]) for other, text in columns["difference"].items()}
    return found


def expected_p(tables, item):
    """How a page writes the p-value of one claim, or the greatest of several."""
    rows, _, others = item.removeprefix("p of ").partition(" ahead of ")
    found = [tests_of_means(tables)[row, other][1] for row in rows.split(" & ") for other in others.split(" & ")]
    return found[0] if len(found) == 1 else f"≤ {max(one.removeprefix('< ') for one in found)}"


def value(tables, column, row, metric):
    return float(re.match(r"\d*\.?\d+", lookup(tables, metric, column)[row])[0])


def is_of_errors(tables):
    """Whether less of the score is better."""
    return any(title.startswith("mae_macro") for title in tables)


class Claim(NamedTuple):
    """What a sentence should say: the least and the greatest of its values, the error that rounding left in them, and
    whether one is within noise (None: not tested)."""

    least: float
    greatest: float
    error: float = 0
    noise: bool | None = None


def difference(tables, column, row, reference, worst=""):
    """How far a row is ahead, in points (or the error's unit), the error that rounding leaves in that, and whether it
    is within noise (None: not tested)."""
    error = is_of_errors(tables)
    scale = 1 if error else 100
    test = "Worst tenth against" if worst else "MAE, so much less of it against" if error else "Accuracy against"
    for sign, one, other in ((1, row, reference), (-1, reference, row)):
        if any(title.startswith(f"{test} {other}, paired") for title in tables):
            mark, direction, mean = tested(tables, f"{test} {other}", column, one)
            return sign * scale * (mean if direction == "+" else -mean), 0, bool(mark)
    metric = f"{'mae' if error else 'accuracy'}_{'worst_decile' if worst else 'macro'}"
    less = value(tables, column, row, metric) - value(tables, column, reference, metric)
    return (-less if error else less) * scale, 0.001 * scale, None


def claimed(tables, named, item):
    """The claim of an item over the columns that are named."""
    item, in_the_mean, _ = item.partition(" in the mean")
    compared = re.fullmatch(r"(.+) (ahead of|behind|over) (.+?)(?: @ (.+))?", item)
    if compared is None:
        item, everywhere, _ = item.partition(" in all")
        row, _, metric = item.partition(" @ ")
        metric = metric or "accuracy_macro"
        found = [value(tables, column, row, metric) for column in columns_named(tables, named, metric)]
        if in_the_mean:
            return Claim(np.mean(found), np.mean(found), 0.0006)
        assert everywhere
        return Claim(min(found), max(found))
    if compared[2] == "over":
        sums = [
            [
                sum(value(tables, column, row, metric) for metric in compared[4].split(" + "))
                for row in compared.group(1, 3)
            ]
            for column in columns_named(tables, named)
        ]
        shares = [one / other for one, other in sums]
        return Claim(min(shares), max(shares), 0.002)
    sign = 1 if compared[2] == "ahead of" else -1
    metric = "mae_macro" if is_of_errors(tables) else "accuracy_macro"
    columns = columns_named(tables, named, metric)
    pairs = [(row, reference) for row in compared[1].split(" & ") for reference in compared[3].split(" & ")]
    found = {pair: [difference(tables, column, *pair, compared[4]) for column in columns] for pair in pairs}
    if in_the_mean:
        means = [sign * np.mean([one[0] for one in every]) for every in found.values()]
        tested_means = tests_of_means(tables)
        texts = [tested_means.get(pair) or tested_means.get(pair[::-1]) for pair in pairs]
        are_tested = None not in texts and columns == columns_named(tables, "*", metric)
        noise = any("≈" in text for text, _ in texts) if are_tested else None
        return Claim(min(means), max(means), 0.06, noise)
    every = [one for some in found.values() for one in some]
    values = [sign * one[0] for one in every]
    noise = None if None in (one[2] for one in every) else any(one[2] for one in every)
    return Claim(min(values), max(values), max(one[1] for one in every), noise)


NUMBER = r"(\d*\.?\d+)(?![\w%])"
SAID = re.compile(rf"(≈ )?(?<![\w.+−])(?<!= ){NUMBER}(?=(?: (?:to|and) {NUMBER})?)")


def says(said, claim):
    """How many characters of "3.1 to 5.7", or of "5.4", say what is claimed, to their own digits; 0: they do not."""

    def is_written(text, real):
        return abs(float(text) - real) <= 0.5 * 10 ** -len(text.partition(".")[2]) + claim.error + 1e-9

    if claim.noise not in (None, bool(said[1])) or not is_written(said[2], claim.least):
        return 0
    if is_written(said[2], claim.greatest):
        return said.end() - said.start()
    return said.end(3) - said.start() if said[3] and is_written(said[3], claim.greatest) else 0


def without_claims(block, tables):
    """The prose of a block without the figures that its claims find in their order.

    Raises `AssertionError` where one is not said.
    """
    bare = re.sub(rf"{P_VALUE.pattern}|Dirichlet \d*\.\d+", "", prose_of(block))
    start = 0
    for name, named, items in CITATION.findall(block):
        are_claims = {is_claim(item) for item in items.split(";")}
        assert len(are_claims) == 1, f"claims and figures in one comment: {items}"
        for item in items.split(";") if are_claims == {True} else ():
            claim = claimed(tables[name], named, item.strip())
            right = [one for one in SAID.finditer(bare, start) if says(one, claim)]
            said = next((one for one in right if "." in one[2]), next(iter(right), None))
            assert said, f"{item.strip()} in {named}: {claim}, which is not in {bare[start:]!r}"
            bare = f"{bare[: said.start()]}{bare[said.start() + says(said, claim) :]}"
            start = said.start()
    return bare


def is_p_value(item):
    return item.startswith("p of ")


def is_claim(item):
    return not is_p_value(item) and re.search(r" (ahead of|behind|over) | in the mean| in all", item) is not None


def blocks(text):
    """Paragraphs, list items and rows of tables, without code."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [block for block in re.split(r"\n\s*\n|\n(?=\||- |#)", text) if block.strip()]


def prose_of(block):
    """A block without comments, code and links."""
    return re.sub(r"<!--.*?-->|`[^`]*`|\]\([^)]*\)", "", block, flags=re.DOTALL)


def wrong_figures(block, tables, others=False):
    """(written, cited) of a block; empty where they agree. With ``others`` there may be more before them."""
    p_values = [
        expected_p(tables[name], item.strip())
        for name, _, items in CITATION.findall(block)
        if is_p_value(items)
        for item in items.split(";")
    ]
    said = P_VALUE.findall(prose_of(block))
    if said != p_values and any(tests_of_means(tables[name]) for name, _, _ in CITATION.findall(block)):
        return [(said, p_values)]
    cited = [
        expected(tables[name], column, item.strip())
        for name, named, items in CITATION.findall(block)
        if not is_claim(items) and not is_p_value(items)
        for column in columns_named(tables[name], named, (items.partition(" @ ")[2] or "accuracy_macro").strip())
        for item in items.split(";")
    ]
    rest = FIGURE.findall(without_claims(block, tables))
    written = rest[len(rest) - len(cited) :] if others else rest
    return [] if written == cited else [(written, cited)]
