"""What the documents say is held to the code."""

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

import click
import pytest
import typer

from bouquet.cli import app
from bouquet.client.data.loading import load_partition
from bouquet.common.data.catalog import DATASETS
from bouquet.common.data.partitions import PARTITIONS
from bouquet.common.methods import METHODS
from bouquet.common.model.architectures import model_names
from bouquet.common.model.build import initial_model
from bouquet.common.settings import Settings, load_settings, section_class
from bouquet.experiments.report.units import human_bytes
from bouquet.experiments.simulation.run import simulate
from bouquet.settings_reference import settings_reference
from bouquet.strategies.registry import hyper_parameters, strategy_class

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Made by programs, or not for a reader's task.
MADE = {"settings.md", "evidence.md", "CHANGELOG.md"}
GUIDES = [page for page in PAGES if page.name not in MADE and page.parent.name not in ("results", "papers")]
WRITTEN = [page for page in PAGES if page.name != "settings.md" and page.parent.name != "results"]
RESEARCH = {
    "claims.md",
    "comparing.md",
    "decisions.md",
    "defaults.md",
    "performance.md",
    "privacy-costs.md",
    "results.md",
}
# Pages that the site includes from elsewhere.
INCLUDED = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").glob("*/README.md"))]
WORDS = {
    "quickstart.md": 600,
    "choosing-a-method.md": 500,
    "security.md": 900,
    "reliability.md": 1500,
    "performance.md": 800,
    "decisions.md": 2500,
    "writing-a-strategy.md": 1500,
    "own-package.md": 1500,
}


def prose(page):
    """The words of a page, without code: links are their text, a name in backticks is one word."""
    text = re.sub(r"(?ms)^ *```.*?^ *```|<!--.*?-->", "\n\n", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`]*`", "x", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))


def code(page):
    """What stands in code on a page: its blocks, and what is in backticks; no line is continued."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"(?ms)^ *```(?!\{).*?\n(.*?)^ *```", text)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^ *```.*?^ *```", "", text))])


def test_no_message_names_a_page_which_a_wheel_lacks():
    for package in ("bouquet", "client", "common", "experiments", "server", "strategies"):
        for file in (ROOT / package).rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                    assert not re.search(r"docs/[\w-]+\.md", node.value), f"{file}:{node.lineno}"


def test_the_reference_of_settings_is_up_to_date():
    assert (ROOT / "docs" / "settings.md").read_text() == settings_reference(), (
        "run: python -m bouquet.settings_reference > docs/settings.md"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_the_pages_cite_are_there(page):
    cited = re.findall(r"(tests/[\w./]+\.py)(?:::(\w+))?", page.read_text())
    found = {file: (ROOT / file).read_text() if (ROOT / file).exists() else None for file, _ in cited}
    missing = [
        (file, name)
        for file, name in cited
        if (text := found[file]) is None or (name and not re.search(rf"^def {name}\(", text, re.MULTILINE))
    ]
    assert missing == []


# The head of a table's file is the text of its page.
@pytest.mark.parametrize(
    "page", [*WRITTEN, *INCLUDED, *(ROOT / "experiments" / "tables").glob("*.toml")], ids=lambda page: page.name
)
def test_each_sentence_is_read_once(page):
    text = prose(page)
    if page.suffix == ".toml":
        text = text.partition("\nname")[0].replace("#   ", "\n\n").replace("#", "")
    blocks = re.split(r"\n\s*\n|(?<!\\)\||\n\s*(?:[-*]|\d+\.) ", text)
    sentences = [sentence for block in blocks for sentence in re.split(r"(?<=[.?!])(?:\*\*|\))?\s+", block.strip())]
    assert [sentence for sentence in sentences if len(sentence.split()) > 35] == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_a_guide_is_as_long_as_it_may_be(page):
    assert len(re.sub(r"[|#*-]+", " ", prose(page)).split()) <= WORDS.get(page.name, 1200)


@pytest.mark.parametrize("page", [one for one in GUIDES if one.name not in RESEARCH], ids=lambda page: page.name)
def test_a_task_has_no_figure_to_three_decimals(page):
    assert re.findall(r"(?<![\w.])\d*\.\d{3}(?![\w.])", prose(page)) == []


def test_the_guides_together_are_a_short_book():
    assert sum(len(re.sub(r"[|#*-]+", " ", prose(page)).split()) for page in [*GUIDES, *INCLUDED]) <= 40_000


def test_settings_that_the_pages_name_are_there():
    known = {f"{section}.{key}" for section in Settings.model_fields for key in section_class(section).model_fields}
    options = {key for name in METHODS for key in hyper_parameters(strategy_class(name))}
    known |= {f"strategy.{key}" for key in options}
    # Also a section that is none, beside which there is a key of one.
    keys = {name.partition(".")[2] for name in known}
    named = {
        (page.name, found)
        for page in PAGES
        if page.name not in ("writing-a-strategy.md", "own-package.md")  # whose code has dots of its own
        for found, key in re.findall(r"(?<![\w/.])(\w+\.(\w+))(?![\w.(])", page.read_text())
        if key in keys
    }
    assert sorted(found for found in named if found[1] not in known) == []


def test_commands_and_options_that_the_pages_show_are_there():
    bouquet, wrong, shown = typer.main.get_command(app), [], set()
    for page in (one for one in PAGES if one.parent.name != "results"):
        for line in re.findall(r"(?<![\w/.'-])bouquet ([a-z][^`#|;&)\n]*)", code(page)):
            words = line.split()
            words = words[words[0] == "bouquet" :]  # docker exec bouquet bouquet …
            command, path = bouquet, []
            while isinstance(command, click.Group) and words and words[0] in command.commands:
                path.append(words[0])
                command = command.commands[words.pop(0)]
            if not path:  # a container, a user or a folder of this name
                wrong += [(page.name, words[0])] if words[0] not in ("python", "pull", "pi", "imports") else []
                continue
            shown.add(path[0])
            options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
            wrong += [(page.name, *path, one) for one in words if one[:2] == "--" and one.split("=")[0] not in options]
    assert wrong == []
    assert shown >= set(bouquet.commands)


def test_settings_that_the_pages_show_can_be_loaded(tmp_path):
    files = 0
    for page in (one for one in PAGES if one.name not in ("settings.md", "architecture.md")):
        text = page.read_text()
        for change in re.findall(r"--set ['\"]?([\w.]+=(?:\[.*?\]\]|[^\s'\"`)]+))", text):
            load_settings(None, [change])
        for block in re.findall(r"(?ms)^ *```toml\n(.*?)^ *```", text):
            if tomllib.loads(block).keys() <= Settings.model_fields.keys():  # else a table file, or an owner's
                (tmp_path / "run.toml").write_text(block)
                load_settings(tmp_path / "run.toml")
                files += 1
    assert files > 10


def test_programs_that_the_pages_show_are_there():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (one for one in PAGES if one.parent.name != "results"):
        text = code(page)
        assert set(re.findall(r"^(?:sudo )?make ([a-z][\w-]*)", text, re.MULTILINE)) <= targets, page.name
        for name, words in re.findall(r"python (?:-m )?(benchmarks[./][\w./]+)([^#|;&\n>]*)", text):
            path = ROOT / name.removesuffix(".py").replace(".", "/")
            files = path.glob("*.py") if path.is_dir() else [path.with_suffix(".py")]
            program = "".join(file.read_text() for file in files)
            options = re.findall(r"--[a-z][\w-]*", words)
            assert [one for one in options if f'"{one}"' not in program] == [], (page.name, name)


def test_every_strategy_is_in_the_table_of_methods_and_the_readme_leads_there():
    table = (ROOT / "docs" / "methods.md").read_text().partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(METHODS)
    readme = (ROOT / "README.md").read_text()
    assert "(docs/methods.md)" in readme
    assert f"There are {len(METHODS)}:" in readme
    assert readme.count("\n") <= 120


def test_every_data_set_and_partition_is_in_the_page_on_simulating():
    rows = re.findall(
        r"^\| `([^`]+)` \| ([^|]*) \| ([^|]*) \|", (ROOT / "docs" / "simulating.md").read_text(), re.MULTILINE
    )
    found = {name: (second, third) for name, second, third in rows}
    for name, info in DATASETS.items():
        assert found[name] == (" × ".join(map(str, info.input_shape)), str(info.num_classes))
    assert set(PARTITIONS) <= found.keys()


def test_every_model_is_in_the_page_on_models():
    text = (ROOT / "docs" / "models.md").read_text()
    assert [name for name in model_names() if f"`{name}`" not in text] == []


def test_the_strategy_of_the_page_on_writing_one_runs_and_resumes(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "writing-a-strategy.md").read_text()
    code = re.search(r"```python\n(# oneshot\.py\n.*?)```", page, re.DOTALL)[1]
    (tmp_path / "oneshot.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "oneshot", raising=False)
    changes = ["data.clients=6", "data.partition=rotated", "data.groups=3", "simulation.engine=inline"]
    for rounds in (2, 4):
        own = [*changes, "strategy.name=oneshot:OneShot", "strategy.num_clusters=3", f"run.rounds={rounds}"]
        simulate(load_settings(None, own), tmp_path / "run", resume=rounds == 4)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["purity"] == 1.0


def test_the_partition_of_ones_own_on_the_page_on_simulating(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(# split\.py\n.*?)```", (ROOT / "docs" / "simulating.md").read_text(), re.DOTALL)
    (tmp_path / "split.py").write_text(code.replace("fashion-mnist", "digits"))  # which need no file
    (tmp_path / "split.json").write_text(json.dumps([[*range(start, 100, 4)] for start in range(4)]))
    monkeypatch.chdir(tmp_path)
    parts = [load_partition("./split.py:split", "natural", number, 4, seed=0) for number in range(4)]
    assert [(len(part.train_y) + len(part.test_y), part.group) for part in parts] == [
        (25, 0),
        (25, 1),
        (25, 2),
        (25, 0),
    ]


def test_the_sizes_of_models_are_those_of_the_page():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w:-]+)`(?:,[^|]*?([\d×]+))? \| ([\d ]+) \| ([\d.]+ .B) \|$", page, re.MULTILINE)
    assert len(rows) == 9
    for name, shape, parameters, size in rows:
        shape = [int(side) for side in (shape or "3×32×32").split("×")]
        changes = [f"model.name={name}", "data.dataset=own", "data.classes=a,b,c", f"data.input_shape={shape}"]
        count = sum(p.numel() for p in initial_model(load_settings(None, changes)).parameters())
        assert (name, int(parameters.replace(" ", "")), size) == (name, count, human_bytes(4 * count))
