"""Options that several commands share, and the settings they add up to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bouquet.common.settings import Settings, load_settings, parse_settings
from bouquet.common.settings.sections import StrategySettings
from bouquet.console import errors

# Panels of --help.
SETTINGS = "Settings of the run"
WHO = "The server, and who this device is"
DATA = "Its data"
TRUST = "What of the server's it runs"
OWNER = "When it works, and what leaves it"
REACHED = "How devices reach it"
STAY = "Begin, go on, stay"

SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings", "-s", metavar="FILE", help="Settings of the run, a TOML file.", rich_help_panel=SETTINGS
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Set any key, over the file; can be given many times.",
        rich_help_panel=SETTINGS,
    ),
]
Strategy = Annotated[
    str | None,
    typer.Option(
        help="fesem, fesem-ma, fedavg, fedprox, standalone, … or your own: package.module:Class or ./file.py:Class.",
        rich_help_panel=SETTINGS,
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        help="digits, mnist, fashion-mnist, emnist, cifar10, uci-har, …, own, or package.module:function.",
        rich_help_panel=SETTINGS,
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder that holds the data set; 'digits' needs none.", rich_help_panel=SETTINGS)
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="iid, dirichlet, pathological, dominant, class-groups, rotated, label-permuted, natural, or your own.",
        rich_help_panel=SETTINGS,
    ),
]
Clients = Annotated[
    int | None, typer.Option(help="Number of clients the data set is divided among.", rich_help_panel=SETTINGS)
]
Groups = Annotated[
    int | None, typer.Option(help="Number of true groups, for partitions that have them.", rich_help_panel=SETTINGS)
]
Model = Annotated[
    str | None, typer.Option(help="mlp, cnn-dcpfl, resnet18, … or package.module:factory.", rich_help_panel=SETTINGS)
]
Rounds = Annotated[int | None, typer.Option(help="Rounds of training.", rich_help_panel=SETTINGS)]
Seed = Annotated[int | None, typer.Option(help="Everything random derives from it.", rich_help_panel=SETTINGS)]
NoCompare = Annotated[
    bool,
    typer.Option(
        "--no-compare",
        help="Train no model alone on each device: half the work, and nothing says what devices gain.",
        rich_help_panel=SETTINGS,
    ),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Run folder; runs/NAME by default.")]
# Of a device: what ``client`` and ``check`` are given alike.
SERVER_ADDRESS = typer.Option("--server", metavar="HOST:PORT", help="Where the server listens.", rich_help_panel=WHO)
DeviceData = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="This device's data: a folder of images by class, an .npz, or CSV.", rich_help_panel=DATA
    ),
]
StateDir = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Where this device keeps its identity and its own model.", rich_help_panel=WHO),
]
STATE_DIR = Path("bouquet-state")
DeviceKeys = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        metavar="DIR",
        help="This device's folder from the server's keys/devices; 'keys' by default.",
        rich_help_panel=WHO,
    ),
]
DeviceInsecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Trust the network: for a server that was started with --insecure.", rich_help_panel=WHO
    ),
]
Health = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", envvar="BOUQUET_HEALTH", help="Offer gRPC's health service there, without TLS."),
]
Cold = Annotated[
    bool,
    typer.Option("--cold", help="Start a fresh Python for each task: slower, for devices with little memory."),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse photos and rows that cannot be read, even one; without it up to 5 % are left out.",
        rich_help_panel=DATA,
    ),
]
ReportClasses = Annotated[
    bool,
    typer.Option(
        "--report-classes",
        help="Tell the server this device's samples and accuracy by class; by default only sums.",
        rich_help_panel=OWNER,
    ),
]
KeepWaiting = Annotated[
    bool,
    typer.Option(
        "--keep-waiting",
        rich_help_panel=STAY,
        help="Stay when the run is over: wait for bouquet run NEXT.toml, and for devices without limit.",
    ),
]
Web = Annotated[
    str | None,
    typer.Option(
        "--web",
        metavar="HOST:PORT",
        help="Offer a live page, status and metrics there; read-only, token beyond 127.0.0.1.",
    ),
]
Signature = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=REACHED,
        metavar="FILE",
        help="Owner's signature on this release (bouquet keys sign); release.sig in --keys.",
    ),
]
TrustApp = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SHA256", help="Also run the server's code with this digest; can be repeated.", rich_help_panel=TRUST
    ),
]
TrustSigner = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="Also run what this key signed (signer.pub of bouquet keys signer).", rich_help_panel=TRUST
    ),
]
TrustAnyApp = Annotated[
    bool,
    typer.Option(
        "--trust-any-app",
        help="Run whatever the server sends: its operator can do all that you can.",
        rich_help_panel=TRUST,
    ),
]
AllowModel = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE.MODULE:FACTORY", help="A model of your own that the server may ask for.", rich_help_panel=TRUST
    ),
]
AllowProcedure = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|PACKAGE.MODULE",
        help="What a method of another package may do here; can be repeated.",
        rich_help_panel=TRUST,
    ),
]
AllowData = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE.MODULE:FUNCTION",
        help="A data set or partition of your own that the server may ask for.",
        rich_help_panel=TRUST,
    ),
]
LeastNoise = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="Z",
        help="Send nothing to a run whose privacy.noise_multiplier is below Z, or that wants scores.",
        rich_help_panel=OWNER,
    ),
]
MostEpsilon = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="E",
        help="Let noised uploads of (E, 1e-5) leave in all, over all runs and restarts, and nothing else.",
        rich_help_panel=OWNER,
    ),
]
MostHours = Annotated[
    float, typer.Option(min=0.01, metavar="H", help="Let the work on one task take no longer than H hours.")
]
When = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="This device's owner says when it works: \\[when] with hours, power, link, temperature, …",
        rich_help_panel=OWNER,
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="TAG",
        help="What this device is called by beside its name; can be repeated.",
        rich_help_panel=WHO,
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the run folder after its last round.")]
ResumeOrBegin = Annotated[
    bool,
    typer.Option(
        "--resume",
        rich_help_panel=STAY,
        help="Go on with the run in the run folder; begin it where there is none, as a service wants it.",
    ),
]


def read_settings(
    settings: SettingsFile = None,
    set_: Overrides = None,
    strategy: Strategy = None,
    dataset: Dataset = None,
    data_dir: DataDir = None,
    partition: Partition = None,
    clients: Clients = None,
    groups: Groups = None,
    model: Model = None,
    rounds: Rounds = None,
    seed: Seed = None,
    no_compare: NoCompare = False,
) -> Settings:
    """The settings file, ``--set`` over it, and the short options over both.

    With another ``--strategy`` than the file's, hyper-parameters of the file that it does not have are left out.
    """
    found = load_settings(
        settings,
        set_ or [],
        strategy__name=strategy,
        data__dataset=dataset,
        data__data_dir=None if data_dir is None else str(data_dir.absolute()),
        data__partition=partition,
        data__clients=clients,
        data__groups=groups,
        model__name=model,
        run__rounds=rounds,
        run__seed=seed,
        personal__compare=False if no_compare else None,
    )
    return found if strategy is None or settings is None else _without_foreign_options(found, set_ or [])


def _without_foreign_options(settings: Settings, explicit: list[str]) -> Settings:
    from bouquet.strategies.registry import option_names

    name, options = settings.strategy.name, settings.strategy.options
    known = {*option_names(name), *(text.partition("=")[0].strip().removeprefix("strategy.") for text in explicit)}
    if foreign := [key for key in options if key not in known]:
        errors.print(f"left out  {', '.join(f'strategy.{key}' for key in foreign)}: {name} has no such setting")
    kept = {key: value for key, value in options.items() if key in known}
    return settings.model_copy(update={"strategy": StrategySettings(name=name, **kept)})


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `read_settings`; what they add up to is its first argument."""
    shared = inspect.signature(read_settings, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def with_settings(**given: Any) -> None:
        chosen = read_settings(**{name: given.pop(name) for name in shared})
        command(chosen, **given)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*shared.values(), *own)]
    with_settings.__name__, with_settings.__doc__ = command.__name__, command.__doc__
    with_settings.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_settings


def override(base: Settings, overrides: list[str]) -> Settings:
    """``section.key=value`` texts over settings that are there already."""
    given = load_settings(None, overrides).model_dump(exclude_unset=True)
    flat = {f"{section}.{key}": value for section, values in given.items() for key, value in values.items()}
    return parse_settings(base.model_dump(), flat)
