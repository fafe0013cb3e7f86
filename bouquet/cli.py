"""The program ``bouquet``. Commands import what they need when they run: a device loads no more than its own part."""

from __future__ import annotations

import io
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from bouquet.commands import begin, fleet, models, options
from bouquet.commands.keys import keys_app
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.task.task import task_of
from bouquet.console import console, errors

app = typer.Typer(
    name="bouquet",
    help="Clustered, personalised federated learning on real devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    suggest_commands=False,  # click does, too
)
GROUPS = TRY, SERVER, DEVICE, RESEARCH = "Try", "Server", "Device", "Research"  # of the commands, as --help has them
SERVERS_OWN = {"fastapi", "jinja2", "matplotlib", "prometheus_client", "scipy", "sklearn", "tomli_w", "uvicorn"}
ESCAPED = "backslashreplace"
INTERRUPTED = 130  # as shells count an end by SIGINT


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"bouquet {version('bouquet-fl')}, flwr {version('flwr')}, torch {version('torch')}")
        raise typer.Exit


@app.callback()
def bouquet(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show Flower's own log, too.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show versions and exit.")
    ] = False,
) -> None:
    """Clustered, personalised federated learning on real devices."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("FLWR_LOG_LEVEL", "DEBUG" if verbose else "ERROR")  # read when flwr is imported


@app.command(rich_help_panel=RESEARCH)
@options.takes_settings
def simulate(
    chosen: Settings,
    out: options.Out = None,
    resume: options.Resume = False,
    arrivals: Annotated[
        Path | None, typer.Option(help="Take each reply in the round in which it came in this run.", metavar="RUN")
    ] = None,
) -> None:
    """Run a federation of simulated devices on this machine and leave its record in the run folder.

    Example: bouquet simulate --strategy fesem --dataset digits --partition rotated --clients 20 --groups 4 --rounds 15
    """
    from bouquet.experiments.report.run_report import report_line
    from bouquet.experiments.simulation.run import simulate as run
    from bouquet.monitor.round_table import RoundTable, print_summary
    from bouquet.server.record.reader import run_title

    folder = out or Path("runs") / chosen.run.name
    title = run_title(chosen)
    with RoundTable(console, chosen.run.rounds, title, task_of(chosen).score) as table:
        summary = run(chosen, folder, resume, table, arrivals=arrivals)
    print_summary(console, summary)
    console.print(report_line(folder), soft_wrap=True)


@app.command(rich_help_panel=TRY)
def demo(
    out: options.Out = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    strategy: options.Strategy = None,
    set_: options.Overrides = None,
    web: options.Web = None,
) -> None:
    """Start a real federation on this machine: a server and six clients, trained over gRPC in a few seconds.

    The clients hold handwritten digits, turned by 0, 120 or 240 degrees, and nobody tells the server which is which.
    With --web the live page is there while it runs, and until Ctrl-C.
    """
    from bouquet.common.settings import parse_settings
    from bouquet.federation.demo import DEMO, run_demo, unused_folder

    short = {"run.rounds": rounds, "run.seed": seed, "strategy.name": strategy}
    given = [f"{key}={value}" for key, value in short.items() if value is not None]
    chosen = options.override(parse_settings({}, DEMO), [*(set_ or []), *given])
    run_demo(chosen, out or unused_folder(Path("runs") / chosen.run.name), console, web)


@app.command(rich_help_panel=SERVER)
@options.takes_settings
def server(
    chosen: Settings,
    out: options.Out = None,
    resume: options.ResumeOrBegin = False,
    host: Annotated[str, options.of(options.REACHED, "Address to listen on for clients.")] = "0.0.0.0",
    port: Annotated[int, options.of(options.REACHED, "Port to listen on for clients (gRPC).", min=1, max=65535)] = 9092,
    keys: Annotated[
        Path | None,
        options.of(options.REACHED, "Certificates and registered devices; 'keys' by default.", metavar="DIR"),
    ] = None,
    insecure: Annotated[
        bool, options.of(options.REACHED, "No encryption, and whoever asks takes part: for a trial.", "--insecure")
    ] = False,
    health: options.Health = None,
    web: options.Web = None,
    keep_waiting: options.KeepWaiting = False,
    signature: options.Signature = None,
) -> None:
    """Run the server of a federation: wait for clients, train, and leave the record in the run folder.

    Connections are encrypted and only registered devices take part; "bouquet keys" makes what that needs.
    """
    from bouquet.federation.queue import NextRun, was_stopped
    from bouquet.federation.serve import Options, serve
    from bouquet.keys.store import server_keys
    from bouquet.server.record.writer import holds_rounds

    folder = out or Path("runs") / chosen.run.name
    secured = server_keys(keys, insecure)
    how = Options(host, port, secured, console, health, web, keep_waiting, signature)
    ended = keep_waiting and not resume and was_stopped(folder)
    goes_on = (resume or keep_waiting) and holds_rounds(folder)
    if resume and not goes_on:
        console.print(f"No run is in {folder} to go on with: it begins.", soft_wrap=True, highlight=False)
    serve(NextRun(chosen, folder), goes_on, how, ended)


@app.command(rich_help_panel=DEVICE)
def client(
    server: Annotated[str, options.SERVER_ADDRESS],
    data: options.DeviceData = None,
    state_dir: options.StateDir = options.STATE_DIR,
    name: Annotated[
        str | None,
        options.of(options.WHO, "Name of this device, where it has no certificate: its host's name by default."),
    ] = None,
    partition_id: Annotated[
        int | None,
        options.of(options.DATA, "Instead of --data: which part of the server's data set is this device's.", min=0),
    ] = None,
    wait: Annotated[
        float | None, options.of(options.WHO, "Seconds to look for the server at first; for ever if not given.", min=0)
    ] = None,
    keys: options.DeviceKeys = None,
    insecure: options.DeviceInsecure = False,
    strict: options.Strict = False,
    report_classes: options.ReportClasses = False,
    trust_app: options.TrustApp = None,
    trust_signer: options.TrustSigner = None,
    trust_any_app: options.TrustAnyApp = False,
    allow_model: options.AllowModel = None,
    allow_procedure: options.AllowProcedure = None,
    allow_data: options.AllowData = None,
    least_noise: options.LeastNoise = None,
    most_epsilon: options.MostEpsilon = None,
    most_hours: options.MostHours = 24.0,
    when: options.When = None,
    tags: options.Tags = None,
    health: options.Health = None,
    cold: options.Cold = False,
) -> None:
    """Run this device as a client of a federation, until Ctrl-C.

    The device's data and personal layers stay in its folders; what is sent is what the strategy asks for. It connects
    again by itself when the server was restarted. It runs no code from the server but Bouquet's own, as installed here.
    """
    from bouquet.client.agent.main import become_agent
    from bouquet.client.agent.settings import DeviceSettings
    from bouquet.client.trust.policy import CodeTrust
    from bouquet.client.trust.rollback import ROLLOUT_FILE
    from bouquet.common.system.log_file import stamp
    from bouquet.common.trust.signature import read_signer
    from bouquet.device.config import device_config
    from bouquet.keys.store import device_keys

    config = device_config(
        data, state_dir, name, partition_id, strict, least_noise, report_classes, most_epsilon, when, tags or ()
    )
    own = device_keys(keys, insecure)
    trust = CodeTrust(
        frozenset(trust_app or ()),
        trust_any_app,
        frozenset(allow_model or ()),
        frozenset(allow_data or ()),
        frozenset(allow_procedure or ()),
        signers=frozenset(read_signer(file) for file in trust_signer or ()),
        memory=state_dir.absolute() / ROLLOUT_FILE if trust_signer else None,
    )
    key_name = own.name if own else None
    if key_name and partition_id is None:
        config["name"] = key_name
    files: dict[str, Any] = {} if own is None else own.files
    node = DeviceSettings(
        server,
        state_dir.absolute(),
        config,
        insecure=insecure,
        health=health,
        trust=trust,
        wait=wait,
        most_hours=most_hours,
        cold=cold,
        **files,
    )

    def report(line: str) -> None:
        console.print(Text(stamp(line)), soft_wrap=True)

    called = config.get("name", f"part {partition_id} of the data set")
    if name and key_name and name != key_name:
        report(f"This device is {key_name}, as its certificate says; --name {name} is for devices without.")
    report(f"bouquet {version('bouquet-fl')}, device {key_name or called}, for the server {server}.")
    become_agent(node)


@app.command(rich_help_panel=RESEARCH)
def compare(
    table: Annotated[Path, typer.Argument(metavar="TABLE.toml")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where results go; runs/NAME of the table by default.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells run at once; by default as many as the cores allow.")
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print the table for a paper, and nothing else.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the table for a program, and nothing else.")] = False,
) -> None:
    """Run what is missing of a comparison and print one table: rows by metrics, mean ± deviation over the seeds.

    TABLE.toml names strategies, data, partitions and seeds. A comparison that was stopped, or whose table has grown,
    goes on where it was when it is started again. A table that says what to tune is tuned first.
    """
    from bouquet.experiments.comparison.grid import load_table
    from bouquet.experiments.comparison.tables import csv_table, latex_table, print_results, write_results
    from bouquet.experiments.comparison.tuning import run_comparison
    from bouquet.experiments.simulation.run import check_elsewhere

    said = errors if latex or csv else console
    loaded = load_table(table)
    folder = out or Path("runs") / loaded.name
    results = run_comparison(loaded, folder, jobs, said, check_elsewhere)
    written = write_results(results, folder)
    if latex or csv:
        typer.echo(latex_table(results) if latex else csv_table(results), nl=False)
    else:
        print_results(results, console)
    for path in written:
        said.print(f"written  {path}", soft_wrap=True)
    if results.interrupted:
        raise typer.Exit(INTERRUPTED)
    if results.every_failed or results.missing:
        raise typer.Exit(1)


@app.command(rich_help_panel=RESEARCH)
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN")],
    web: options.Web = None,
) -> None:
    """Write report.html into a run's folder, finished or not; with --web, show it as a page, with other runs."""
    from bouquet.experiments.report.run_report import write_report
    from bouquet.federation.run import live_page

    with live_page(lambda: folder, web, None, console, stays=True):
        console.print(f"report   {write_report(folder)}", soft_wrap=True)


app.command(rich_help_panel=TRY)(begin.init)
app.command("try", rich_help_panel=TRY)(begin.try_)
app.add_typer(keys_app, rich_help_panel=SERVER)
app.command(rich_help_panel=SERVER)(fleet.status)
app.command("run", rich_help_panel=SERVER)(fleet.run)
app.command(rich_help_panel=SERVER)(fleet.stop)
app.command(rich_help_panel=DEVICE)(fleet.check)
app.command(rich_help_panel=DEVICE)(models.predict)
app.command(rich_help_panel=DEVICE)(models.export)
app.command(rich_help_panel=DEVICE)(models.rollback)
app.command(rich_help_panel=SERVER)(models.models)
app.registered_commands.sort(key=lambda one: GROUPS.index(str(one.rich_help_panel)))


def main() -> None:
    """Run the command line; a problem that the user can act on is one message and exit status 2."""
    # A shell starts background jobs with SIGINT ignored; `compare` and scripts end a run with it all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):  # a file's name may have what this terminal cannot print
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPED)
    os.environ.setdefault("PYTHONIOENCODING", f":{ESCAPED}")  # of the processes that this one starts, or becomes
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else a server has a line of each stranger's handshake
    try:
        status = app(standalone_mode=False)  # what typer.Exit carries, which Ctrl-C becomes, too
    except BouquetError as error:
        errors.print(Text(f"bouquet: {error}"), style="red", soft_wrap=True)
        sys.exit(error.status)
    except OSError as error:
        # A full disk, or a folder that this user may not read: nothing that a traceback would explain.
        if error.filename is None or "--verbose" in sys.argv or "-v" in sys.argv:
            raise
        errors.print(Text(f"bouquet: {error.filename}: {error.strerror}."), style="red", soft_wrap=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in SERVERS_OWN:
            raise
        errors.print(f"bouquet: this needs {module}: pip install 'bouquet-fl[server]'.", style="red", markup=False)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except Exception as error:
        from click import ClickException, NoSuchOption, UsageError

        if not isinstance(error, ClickException):
            raise
        if isinstance(error, NoSuchOption) and error.option_name in ("--settings", "-s"):
            command = error.ctx.info_name if error.ctx else "server"
            error = UsageError(f"Settings are named as they are: bouquet {command} FILE.toml", error.ctx)
        error.show()
        sys.exit(error.exit_code)
    if status == INTERRUPTED:
        errors.print("bouquet: stopped.", style="yellow")
    sys.exit(status or 0)
