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


def of(panel: str | None, says: str, *names: str, **more: Any) -> Any:
    """An option in a panel of --help."""
    return typer.Option(*names, help=says, rich_help_panel=panel, **more)


SettingsFile = Annotated[Path | None, typer.Argument(metavar="[SETTINGS.toml]")]
Overrides = Annotated[
    list[str] | None,
    of(SETTINGS, "Set any key, over the file; can be given many times.", "--set", metavar="SECTION.KEY=VALUE"),
]
Strategy = Annotated[
    str | None,
    of(
        SETTINGS,
        "fesem, fesem-ma, fedavg, fedprox, standalone, … or your own: package.module:Class or ./file.py:Class.",
    ),
]
Dataset = Annotated[
    str | None,
    of(SETTINGS, "digits, mnist, fashion-mnist, emnist, cifar10, uci-har, …, own, or package.module:function."),
]
DataDir = Annotated[Path | None, of(SETTINGS, "Folder that holds the data set; 'digits' needs none.")]
Partition = Annotated[
    str | None,
    of(
        SETTINGS,
        "iid, dirichlet, pathological, dominant, class-groups, rotated, label-permuted, mixed, natural, or your own.",
    ),
]
Clients = Annotated[int | None, of(SETTINGS, "Number of clients the data set is divided among.")]
Groups = Annotated[int | None, of(SETTINGS, "Number of true groups, for partitions that have them.")]
Model = Annotated[str | None, of(SETTINGS, "mlp, cnn-dcpfl, resnet18, … or package.module:factory.")]
Rounds = Annotated[int | None, of(SETTINGS, "Rounds of training.")]
Seed = Annotated[int | None, of(SETTINGS, "Everything random derives from it.")]
NoCompare = Annotated[
    bool,
    of(
        SETTINGS,
        "Train no model alone on each device: half the work, and nothing says what devices gain.",
        "--no-compare",
    ),
]
Out = Annotated[Path | None, of(None, "Run folder; runs/NAME by default.", metavar="DIR")]
# Of a device: what ``client`` and ``check`` are given alike.
SERVER_ADDRESS = of(WHO, "Where the server listens.", "--server", metavar="HOST:PORT")
DeviceData = Annotated[
    Path | None, of(DATA, "This device's data: a folder of images by class, an .npz, or CSV.", metavar="DIR")
]
StateDir = Annotated[Path, of(WHO, "Where this device keeps its identity and its own model.", metavar="DIR")]
STATE_DIR = Path("bouquet-state")
DeviceKeys = Annotated[
    Path | None,
    of(WHO, "This device's folder from the server's keys/devices; 'keys' by default.", "--keys", metavar="DIR"),
]
DeviceInsecure = Annotated[
    bool, of(WHO, "Trust the network: for a server that was started with --insecure.", "--insecure")
]
Health = Annotated[
    str | None,
    of(None, "Offer gRPC's health service there, without TLS.", metavar="HOST:PORT", envvar="BOUQUET_HEALTH"),
]
Cold = Annotated[
    bool, of(None, "Start a fresh Python for each task: slower, for devices with little memory.", "--cold")
]
Strict = Annotated[
    bool,
    of(DATA, "Refuse photos and rows that cannot be read, even one; without it up to 5 % are left out.", "--strict"),
]
ReportClasses = Annotated[
    bool,
    of(OWNER, "Tell the server this device's samples and accuracy by class; by default only sums.", "--report-classes"),
]
KeepWaiting = Annotated[
    bool,
    of(
        STAY,
        "Stay when the run is over: wait for bouquet run NEXT.toml, and for devices without limit.",
        "--keep-waiting",
    ),
]
Web = Annotated[
    str | None,
    of(
        None,
        "Offer a live page, status and metrics there; read-only, token beyond 127.0.0.1.",
        "--web",
        metavar="HOST:PORT",
    ),
]
Signature = Annotated[
    Path | None,
    of(REACHED, "Owner's signature on this release (bouquet keys sign); release.sig in --keys.", metavar="FILE"),
]
TrustApp = Annotated[
    list[str] | None, of(TRUST, "Also run the server's code with this digest; can be repeated.", metavar="SHA256")
]
TrustSigner = Annotated[
    list[Path] | None, of(TRUST, "Also run what this key signed (signer.pub of bouquet keys signer).", metavar="FILE")
]
TrustAnyApp = Annotated[
    bool, of(TRUST, "Run whatever the server sends: its operator can do all that you can.", "--trust-any-app")
]
AllowModel = Annotated[
    list[str] | None, of(TRUST, "A model of your own that the server may ask for.", metavar="PACKAGE.MODULE:FACTORY")
]
AllowProcedure = Annotated[
    list[str] | None,
    of(TRUST, "What a method of another package may do here; can be repeated.", metavar="NAME|PACKAGE.MODULE"),
]
AllowData = Annotated[
    list[str] | None,
    of(TRUST, "A data set of your own that the server may ask for.", metavar="PACKAGE.MODULE:FUNCTION"),
]
LeastNoise = Annotated[
    float | None,
    of(
        OWNER,
        "Send nothing to a run whose privacy.noise_multiplier is below Z, or that wants scores.",
        min=0,
        metavar="Z",
    ),
]
MostEpsilon = Annotated[
    float | None,
    of(
        OWNER,
        "Let noised uploads of (E, 1e-5) leave in all, over all runs and restarts, and nothing else.",
        min=0,
        metavar="E",
    ),
]
MostHours = Annotated[float, of(None, "Let the work on one task take no longer than H hours.", min=0.01, metavar="H")]
When = Annotated[
    Path | None,
    of(
        OWNER,
        "This device's owner says when it works: \\[when] with hours, power, link, temperature, …",
        metavar="FILE",
    ),
]
Tags = Annotated[
    list[str] | None, of(WHO, "What this device is called by beside its name; can be repeated.", "--tag", metavar="TAG")
]
Resume = Annotated[bool, of(None, "Go on with the run in the run folder after its last round.", "--resume")]
ResumeOrBegin = Annotated[
    bool,
    of(STAY, "Go on with the run in the run folder; begin it where there is none, as a service wants it.", "--resume"),
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
    loaded = load_settings(
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
    return loaded if strategy is None or settings is None else _without_foreign_options(loaded, set_ or [])


def _without_foreign_options(settings: Settings, explicit: list[str]) -> Settings:
    from bouquet.strategies.registry import hyper_parameters, strategy_class

    name, options = settings.strategy.name, settings.strategy.options
    known = {
        *hyper_parameters(strategy_class(name)),
        *(text.partition("=")[0].strip().removeprefix("strategy.") for text in explicit),
    }
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
