"""docs/settings.md, made from the settings themselves: ``python -m bouquet.settings_reference > docs/settings.md``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from bouquet.client.owner.conditions import When
from bouquet.common.methods import METHODS
from bouquet.common.settings import Settings, section_class
from bouquet.strategies.registry import hyper_parameters, strategy_class

INTRODUCTION = (
    "One TOML file holds the settings of a run; `--set section.key=value` lays over it, and `flwr run --run-config`",
    "takes the same keys, but a method's hyper-parameters as JSON: `strategy.options='{\"num_clusters\": 3}'`.",
    "`python -m bouquet.settings_reference` makes this page from the code; a test holds one to the other.",
)


def settings_reference() -> str:
    """Every setting, and every strategy's hyper-parameters, as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield from INTRODUCTION
    for section in Settings.model_fields:
        yield from _section(section, section_class(section))
    yield from _section("when", When)
    yield from ("", "No setting of a run: this is a file of a device's owner, `bouquet client --when FILE`.")
    yield from ("", "## Hyper-parameters of the strategies", "", "Keys of the section `strategy`, beside `name`.")
    for name in METHODS:
        kind, preset = strategy_class(name)
        first = (inspect.getdoc(kind) or "").splitlines()[0]
        also = "".join(f", with {key} = {value!r}" for key, value in preset.items())
        yield from ("", f"### {name}", "", f"`{kind.__module__}.{kind.__name__}`{also}. {first}")
        every = hyper_parameters(kind, METHODS[name].defaults)
        parameters = {key: value for key, value in every.items() if key not in preset}
        if parameters:
            yield from ("", "| key | type | default | what it is |", "| --- | --- | --- | --- |")
        said = parameters_said(kind)
        for key, (annotation, default) in parameters.items():
            meaning = _cell(said[key].replace("``", "`"))
            yield f"| `{key}` | {_cell(_type(annotation))} | {_shown(default)} | {meaning} |"


def parameters_said(kind: type) -> dict[str, str]:
    """Parameter → what the docstrings of a class and its bases, in numpydoc's form, say of it."""
    from numpydoc.docscrape import NumpyDocString  # of the extra 'dev': this page is made in a checkout

    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        for parameter in NumpyDocString(inspect.cleandoc(one.__doc__ or ""))["Parameters"]:
            found |= dict.fromkeys(parameter.name.split(", "), " ".join(" ".join(parameter.desc).split()))
    return found


def _section(name: str, kind: type[BaseModel]) -> Iterator[str]:
    yield from ("", f"## {name}", "", (inspect.getdoc(kind) or "").splitlines()[0], "")
    yield "| key | default | what it is |"
    yield "| --- | --- | --- |"
    for key, field in kind.model_fields.items():
        said = field.description or _plain(key)
        words = _words(field.annotation)
        if any(word not in said for word in words):
            said += f" One of {', '.join(f'`{word}`' for word in words)}."
        yield f"| `{key}` | {_shown(field.default)} | {_cell(said)} |"


def _words(annotation: Any) -> list[str]:
    """The strings that may stand there, of a choice among some."""
    if get_origin(annotation) is Literal:
        return [word for word in get_args(annotation) if isinstance(word, str)]
    return [word for part in get_args(annotation) for word in _words(part)]


def _plain(name: str) -> str:
    return name.replace("_", " ").capitalize() + "."


def _shown(value: Any) -> str:
    return "none" if value is None else f"`{list(value) if isinstance(value, tuple) else value!r}`"


def _type(annotation: Any) -> str:
    if annotation is type(None):
        return "none"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    text = str(annotation).replace("typing.", "").replace("NoneType", "None")
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    print(settings_reference(), end="")
