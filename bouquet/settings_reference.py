"""docs/settings.md, made from the settings themselves: ``python -m bouquet.settings_reference > docs/settings.md``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from bouquet.client.owner.conditions import When
from bouquet.common.methods import METHODS
from bouquet.common.settings import Settings, section_class
from bouquet.strategies.registry import hyper_parameters, strategy_class

BASIC = (
    "run.name",
    "run.rounds",
    "run.seed",
    "data.dataset",
    "data.data_dir",
    "data.partition",
    "data.clients",
    "data.groups",
    "model.name",
    "train.local_epochs",
    "train.batch_size",
    "train.learning_rate",
    "strategy.name",
    "server.min_clients",
    "server.round_timeout",
)
INTRODUCTION = (
    "One TOML file holds the settings of a run; `--set section.key=value` lays over it, and `flwr run --run-config`",
    "takes the same keys, but a method's hyper-parameters as JSON: `strategy.options='{\"num_clusters\": 3}'`.",
    "`python -m bouquet.settings_reference` makes this page from the code; a test holds one to the other.",
)
SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}  # of a `pydantic.Field`'s bounds


def settings_reference() -> str:
    """Every setting, and every strategy's hyper-parameters, as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield from INTRODUCTION
    yield from ("", "## The basic ones", "", "Many runs need no others.", "")
    yield from _table(BASIC, {key: section_class(key.partition(".")[0]) for key in BASIC})
    for section in Settings.model_fields:
        yield from _section(section, section_class(section))
    yield from _section("when", When)
    yield from ("", "No setting of a run: this is a file of a device's owner, `bouquet client --when FILE`.")
    yield from ("", "## Hyper-parameters of the strategies", "", "Keys of the section `strategy`, beside `name`.")
    names: dict[type, str] = {}
    for name in METHODS:
        kind = strategy_class(name)
        names[kind] = name
        words = (inspect.getdoc(kind) or "").splitlines()[0]
        yield from ("", f"### {name}", "", f"`{kind.__module__}.{kind.__name__}`. {words}")
        base = next((one for one in kind.__mro__[1:] if one in names), None)
        of_base = {} if base is None else hyper_parameters(base)
        parameters = hyper_parameters(kind)
        same = [key for key, about in parameters.items() if of_base.get(key) == about]
        if len(same) < len(parameters):
            yield from ("", "| key | type | default | what it is |", "| --- | --- | --- | --- |")
        said = parameters_said(kind)
        for key in (key for key in parameters if key not in same):
            annotation, default = parameters[key]
            meaning = _cell(said[key].replace("``", "`"))
            yield f"| `{key}` | {_cell(_type(annotation))} | {_shown(default)} | {meaning} |"
        if base is not None and same:
            yield from ("", f"As for [{names[base]}](#{names[base]}): {', '.join(f'`{key}`' for key in same)}.")


def parameters_said(kind: type) -> dict[str, str]:
    """Parameter → what the docstrings of a class and its bases, in numpydoc's form, say of it."""
    from numpydoc.docscrape import NumpyDocString  # of the extra 'dev': this page is made in a checkout

    descriptions: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        for parameter in NumpyDocString(inspect.cleandoc(one.__doc__ or ""))["Parameters"]:
            descriptions |= dict.fromkeys(parameter.name.split(", "), " ".join(" ".join(parameter.desc).split()))
    return descriptions


def _section(name: str, kind: type[BaseModel]) -> Iterator[str]:
    """A section's settings but the basic ones."""
    keys = [f"{name}.{key}" for key in kind.model_fields if f"{name}.{key}" not in BASIC]
    if keys:
        yield from ("", f"## {name}", "", (inspect.getdoc(kind) or "").splitlines()[0], "")
        yield from _table([key.partition(".")[2] for key in keys], dict.fromkeys(kind.model_fields, kind))


def _table(keys: Sequence[str], kinds: Mapping[str, type[BaseModel]]) -> Iterator[str]:
    yield "| key | default | what it is |"
    yield "| --- | --- | --- |"
    for key in keys:
        field = kinds[key].model_fields[key.rpartition(".")[2]]
        said = field.description or key.rpartition(".")[2].replace("_", " ").capitalize() + "."
        words = _words(field.annotation)
        if any(word not in said for word in words):
            said += f" One of {', '.join(f'`{word}`' for word in words)}."
        yield f"| `{key}` | {_shown(field.default)} | {_cell(said)} |"


def _words(annotation: Any) -> list[str]:
    """The strings that may stand there, of a choice among some."""
    if get_origin(annotation) is Literal:
        return [word for word in get_args(annotation) if isinstance(word, str)]
    return [word for part in get_args(annotation) for word in _words(part)]


def _shown(value: Any) -> str:
    return "none" if value is None else f"`{list(value) if isinstance(value, tuple) else value!r}`"


def _type(annotation: Any) -> str:
    """``int ≥ 1 or 'auto'``, say."""
    if get_origin(annotation) is Annotated:
        kind, field = get_args(annotation)
        bounds = ((sign, getattr(bound, name, None)) for bound in field.metadata for name, sign in SIGNS.items())
        return _type(kind) + ",".join(f" {sign} {bound}" for sign, bound in bounds if bound is not None)
    if annotation is type(None):
        return "none"
    if get_origin(annotation) is Literal:
        return " or ".join(repr(word) for word in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_type(part) for part in get_args(annotation))
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    print(settings_reference(), end="")
