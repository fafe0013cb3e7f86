"""The table of docs/security.md is what the benchmark finds."""

from pathlib import Path

from benchmarks import capture


def test_the_page_says_what_is_measured():
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    found, said = capture.table().splitlines(), page.splitlines()
    start = said.index(found[0])
    for line, other in zip(found, said[start : start + len(found)], strict=True):
        cells, others = ([cell.strip() for cell in text.split("|")[1:-1]] for text in (line, other))
        assert cells[0] == others[0]
        for cell, there in zip(cells[1:], others[1:], strict=True):
            if line not in found[:2]:
                assert abs(float(cell) - float(there)) <= 0.1 * float(there)  # another BLAS


def test_a_minority_is_bounded_and_half_is_not():
    for name in ("`limit_norm = 2`", '`"median"`', '`"krum"`'):
        assert capture.moved(capture.RULES[name], 3, 0) < 2
        assert capture.moved(capture.RULES[name], 5, 0) > 50
    assert capture.moved(capture.RULES["no protection"], 1, 0) > 900
