"""``bouquet check``: is this device ready to join? One screen of answers, each with what to do where it is no."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from rich.console import Console
from rich.text import Text

from bouquet.common.data.images import IMAGE_SUFFIXES, is_clutter
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings, load_settings
from bouquet.common.settings.sections import OWN_DATA
from bouquet.common.system.resources import available_bytes, available_cores, peak_bytes, reset_peak
from bouquet.common.trust.certificates import expires, read
from bouquet.keys.store import CA_CERTIFICATE, DEFAULT, device_keys

OK, WARNING, WRONG = "ok", "look", "WRONG"
LEAST_DISK_MB = 200  # for the state folder: models, and what is on its way
LEAST_MEMORY_MB = 400  # docs/device-memory.md says what was measured
NEAR_DAYS = 30
STEP_SAMPLES = 256
ANY_SHAPE = (3, 32, 32)  # of photos, where no settings say one
MOST_COLUMNS = 20  # whose mean is said


@dataclass(frozen=True)
class Line:
    """An answer: ``state`` is ok, look or WRONG."""

    what: str
    state: str
    text: str

    @property
    def wrong(self) -> bool:
        """Whether the device cannot join like this."""
        return self.state == WRONG


def check_device(
    *,
    server: str | None,
    data: Path | None,
    state_dir: Path,
    settings: Path | None,
    keys: Path | None,
    insecure: bool,
    strict: bool = False,
    owner: Mapping[str, float] | None = None,
    when: Path | None = None,
) -> list[Line]:
    """Everything that can be checked with what was given, in the order in which it would go wrong."""
    chosen = load_settings(settings) if settings else None
    lines = [*_data(data, chosen, strict), *_keys(keys, insecure), *_machine(state_dir)]
    if chosen is None:
        lines.append(Line("model", WARNING, "Not timed: give the server's settings file (bouquet check FILE.toml)."))
    else:
        lines += _step(chosen, data, strict)
        lines += _code(chosen)
    if when is not None:
        lines.append(_when(when, state_dir))
    if owner:
        lines.append(_privacy(owner, chosen, state_dir))
    if server is None:
        lines.append(Line("server", WARNING, "Not asked: give its address (--server HOST:PORT)."))
    else:
        lines += _server(server, keys, insecure)
    return lines


def print_checks(console: Console, lines: list[Line]) -> None:
    """The answers, a line each."""
    styles = {OK: "green", WARNING: "yellow", WRONG: "bold red"}
    for line in lines:
        text = Text(f"{line.what:<8}").append(f"{line.state:<6}", styles[line.state]).append(line.text)
        console.print(text, soft_wrap=True)
    count = sum(line.wrong for line in lines)
    console.print("Ready to join." if not count else f"{count} of {len(lines)} checks failed.")


def _data(path: Path | None, settings: Settings | None, strict: bool) -> Iterator[Line]:
    if path is None:
        yield Line("data", WARNING, "Not looked at: give the folder or .npz (--data).")
        return
    try:
        if settings is not None and settings.data.dataset == OWN_DATA:
            yield from _whole_data(path, settings, strict)
        else:
            yield from _photos(path, strict)
    except (BouquetError, OSError) as error:
        yield Line("data", WRONG, str(error))


def _whole_data(path: Path, settings: Settings, strict: bool) -> Iterator[Line]:
    """The data as a round would read them."""
    from bouquet.client.context import own_data

    classes, table = settings.data.classes, settings.table
    clock = time.monotonic()
    data = own_data(settings, str(path), strict)
    took = time.monotonic() - clock
    counts = "".join(f", {n} {c or 'none'}" for n, c in zip(classes, data.samples_by_class(), strict=True))
    what = f"{len(data.train_y)} samples to train on, {len(data.test_y)} to test on{counts.replace(',', ';', 1)}"
    yield Line("data", OK, f"{what}. Read in {took:.1f} s.")
    if data.span:
        yield Line("", OK, data.span)
    for note in (*data.notes, *data.warnings):
        yield Line("", WARNING, note)
    if data.scaling is not None:
        scaling = data.scaling
        words = table.words or [f"x[:, {k}]" for k in range(len(scaling.mean))]  # of an .npz
        named = zip(words, scaling.mean, scaling.std, strict=True)
        about = [f"{name} {mean:.4g} ± {std:.3g}" for name, mean, std in named if name not in table.values]
        inputs = ", ".join(about[:MOST_COLUMNS]) + f", and {len(about) - MOST_COLUMNS} more" * (
            len(about) > MOST_COLUMNS
        )
        targets = zip(table.targets, scaling.target_mean, scaling.target_std, strict=False)
        target_text = "".join(f"; told: {name} {mean:.4g} ± {std:.3g}" for name, mean, std in targets)
        yield Line("", OK, f"Mean and deviation of what is trained on: {inputs}{target_text}.")
    if table.inputs and not table.time:
        yield Line("", WARNING, "No table.time: a random part is tested, which flatters where rows lie close in time.")


def _photos(path: Path, strict: bool) -> Iterator[Line]:
    """What can be said of a folder of photos without the federation's classes: read as in a round, by its own."""
    from bouquet.client.data.folder import npz_of, read_folder
    from bouquet.client.data.loading import MINIMUM_TRAIN
    from bouquet.client.data.table_text import table_files

    if not path.exists():
        yield Line("data", WRONG, f"The data {path} are not there.")
        return
    kind = "an .npz" if npz_of(path) else "a table" if table_files(path) else ""
    if kind:
        yield Line(
            "data",
            WARNING,
            f"{path} holds {kind}; what it must fit is in the server's settings (bouquet check FILE.toml).",
        )
        return
    if not path.is_dir():
        yield Line("data", WRONG, f"{path} is no folder of photos, no .npz and no table.")
        return
    parts = [path / part for part in ("train", "test") if (path / part).is_dir()] or [path]
    for part in parts:
        classes = tuple(sorted(e.name for e in part.iterdir() if e.is_dir() and not is_clutter(e.name)))
        if not classes:
            yield Line("data", WRONG, f"{part} has no folders for classes, with images ({', '.join(IMAGE_SUFFIXES)}).")
            continue
        try:
            own = read_folder(part, ANY_SHAPE, classes, strict=strict)
        except BouquetError as error:
            yield Line("data", WRONG, str(error))
            continue
        labels = own.y.tolist()
        counts = ", ".join(f"{name} {labels.count(k) or 'none'}" for k, name in enumerate(classes))
        needed = {"train": MINIMUM_TRAIN, "test": 1}[part.name] if len(parts) == 2 else MINIMUM_TRAIN + 1
        few = f" A round needs {needed} at least." if len(labels) < needed else ""
        yield Line("data", WRONG if few else OK, f"{len(labels)} images in {part}: {counts}.{few}")
        for note in own.notes:
            yield Line("", WARNING, note)


def _keys(directory: Path | None, insecure: bool) -> Iterator[Line]:
    try:
        own = device_keys(directory, insecure)
    except BouquetError as error:
        yield Line("keys", WRONG, str(error))
        return
    if own is None:
        yield Line("keys", WARNING, "None (--insecure): nothing is encrypted, and the server takes whoever asks.")
        return
    yield Line("keys", OK, f"The certificate of {own.name} and its key can be read.")
    yield _valid(own.certificate)
    yield _clock(own.authority)


def _valid(certificate: Path) -> Line:
    """Until when the device is admitted, as far as its own certificate says."""
    ends = expires(read(certificate)[0])
    left = (ends - datetime.now(UTC)).days
    if left < 0:
        return Line("", WRONG, f"It has expired, on {ends:%Y-%m-%d}: bouquet keys renew, on the server.")
    return Line("", WARNING if left < NEAR_DAYS else OK, f"It is valid until {ends:%Y-%m-%d}.")


def _clock(authority: Path) -> Line:
    """The device's clock against the authority's certificate: a small device that was off is years behind."""
    certificate, now = x509.load_pem_x509_certificate(read(authority)[0]), datetime.now(UTC)
    shown = f"{now.astimezone():%Y-%m-%d %H:%M %Z}"
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now <= ends:
        text = f"{shown}, and {authority.name} is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}: set the clock."
        return Line("clock", WRONG, text)
    state = WARNING if (ends - now).days < NEAR_DAYS else OK
    return Line("clock", state, f"{shown}; {authority.name} is valid until {ends:%Y-%m-%d}.")


def _machine(state_dir: Path) -> Iterator[Line]:
    folder = state_dir.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        yield Line("disk", WRONG, f"{folder} is a file; the state folder cannot be below it.")
        return
    draft = folder / ".bouquet-check"
    try:
        draft.write_bytes(b"")
        draft.unlink()
    except OSError as error:
        yield Line("disk", WRONG, f"The state folder {state_dir} cannot be written to: {error.strerror}.")
        return
    free = shutil.disk_usage(folder).free // 10**6
    yield Line(
        "disk", OK if free >= LEAST_DISK_MB else WRONG, f"{free} MB free for {state_dir} ({LEAST_DISK_MB} needed)."
    )
    found = available_bytes()
    if found is not None:
        available = found // 10**6
        enough = available >= LEAST_MEMORY_MB
        yield Line(
            "memory", OK if enough else WARNING, f"{available} MB available ({LEAST_MEMORY_MB} for a small model)."
        )


def _step(settings: Settings, path: Path | None, strict: bool) -> Iterator[Line]:
    """An epoch of training on samples of the right shape, timed; scaled to the device's own data."""
    import numpy as np
    import torch

    from bouquet.client.context import own_data
    from bouquet.client.training import evaluation, sgd
    from bouquet.client.training.memory import check_fits
    from bouquet.client.training.precision import Precision
    from bouquet.client.training.sgd import sgd_options
    from bouquet.common.model.build import initial_model, model_shape
    from bouquet.common.task.task import task_of

    train = settings.train
    try:
        model = initial_model(settings)
        shape, num_classes = model_shape(settings)
        device = sgd.choose_device(train.device)
        torch.set_num_threads(available_cores())
        own = STEP_SAMPLES
        if path is not None and settings.data.dataset == OWN_DATA:
            with contextlib.suppress(BouquetError):  # said above
                own = len(own_data(settings, str(path), strict).train_y)
        x = torch.zeros(1, *shape)
        count = max(train.batch_size, min(own, STEP_SAMPLES, evaluation.together(x)))
        generator = np.random.default_rng(0)
        x = torch.as_tensor(generator.normal(size=(count, *shape)).astype(np.float32)).to(device)
        task = task_of(settings)
        y = torch.zeros(count, dtype=torch.int64) if task.has_classes else torch.zeros(count, num_classes)
        y = y.to(device)
        precision = Precision.of(train.mixed_precision, device)
        loss = sgd.PLAIN if task.has_classes else sgd.TrainingLoss(loss=task.loss)
        options = sgd_options({"local-epochs": 1}, train)
        model.to(device)
        order = torch.Generator().manual_seed(0)
        reset_peak()
        before, available = peak_bytes(), available_bytes() or 0
        check_fits(model, x, train.batch_size)
        for size in (train.batch_size, count):  # the first step pays for what PyTorch sets up
            clock = time.monotonic()
            sgd.train(model, x[:size], y[:size], options, (), order, loss_of=loss, precision=precision)
        epoch = (time.monotonic() - clock) * own / count
    except BouquetError as error:
        yield Line("model", WRONG, str(error))
        return
    parameters = sum(p.numel() for p in model.parameters())
    grown = peak_bytes() - before
    took = epoch * train.local_epochs
    yield Line(
        "model",
        OK,
        f"{settings.model.name}, {parameters} parameters, on {device}: a round of {train.local_epochs} epochs over "
        f"{own} samples trains for about {took:.1f} s; mini-batches of {train.batch_size} took {grown // 10**6} MB "
        f"beside {before // 10**6} MB for the program.",
    )
    if available and grown > available // 2:
        text = f"That is most of the {available // 10**6} MB that were available: lower train.batch_size on the server."
        yield Line("", WARNING, text)


def _code(settings: Settings) -> Iterator[Line]:
    """What the run needs of code that is not Bouquet's: a client refuses it without its owner's word."""
    from bouquet.client.trust.policy import CodeRefused, CodeTrust

    try:
        CodeTrust().check_config(settings.model_dump(mode="json"))
    except CodeRefused as error:
        yield Line("", WARNING, str(error))


def _when(file: Path, state_dir: Path) -> Line:
    """Whether the owner's conditions hold now; a reading that the machine does not give is a reason, too."""
    from bouquet.client.owner.conditions import read_when
    from bouquet.client.owner.watch import Watch

    try:
        read_when(file)
    except BouquetError as error:
        return Line("when", WRONG, str(error))
    later = Watch(file, state_dir).refusal()
    return Line("when", OK, "It may work now.") if later is None else Line("when", WARNING, f"Not now: {later}.")


def _privacy(owner: Mapping[str, float], settings: Settings | None, state_dir: Path) -> Line:
    """Whether the run protects the device as its owner demands, and what is spent of its budget."""
    from flwr.app import Context, RecordDict

    from bouquet.client.context import ClientContext
    from bouquet.client.node_config import MOST_EPSILON, STATE_DIR
    from bouquet.client.uploads.privacy_budget import Budget

    spent = f"{Budget(state_dir, owner.get(MOST_EPSILON)).told()}."
    if settings is None:
        return Line(
            "privacy", WARNING, f"{spent} Not compared: give the server's settings file (bouquet check FILE.toml)."
        )
    try:
        ClientContext(settings, Context(0, 0, {**owner, STATE_DIR: str(state_dir)}, RecordDict(), {})).check_privacy()
    except BouquetError as error:
        return Line("privacy", WRONG, str(error))
    return Line("privacy", OK, spent)


def _server(address: str, directory: Path | None, insecure: bool) -> Iterator[Line]:
    from bouquet.client.agent.proxy import proxy_variable
    from bouquet.client.agent.reachability import check_server

    own = None
    with contextlib.suppress(BouquetError):  # said above
        own = device_keys(directory, insecure)
    try:
        if (proxy := proxy_variable(address, os.environ)) is not None:
            yield Line("proxy", OK, f"{address} is reached through the proxy that {proxy} names.")
        ours = (directory or DEFAULT) / CA_CERTIFICATE
        none = ours if ours.is_file() else None, None, None
        files = (own.authority, own.certificate, own.private_key) if own else none
        check_server(address, insecure=insecure, authority=files[0], certificate=files[1], private_key=files[2])
        if proxy is None:
            trusted = "." if insecure else ", with a certificate that is trusted."
            yield Line("server", OK, f"{address} answers{trusted}")
        if own is not None or insecure:
            yield Line("", OK, _asked(address, *files))
    except BouquetError as error:
        yield Line("server", WRONG, str(error))


def _asked(address: str, authority: Path | None, certificate: Path | None, private_key: Path | None) -> str:
    """What the server says to this device, which only asks. Raises `BouquetError` where it would not take it."""
    command = [sys.executable, "-P", "-m", "bouquet.client.agent.probe", address]
    command += [str(file) for file in (authority, certificate, private_key) if file is not None]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (done.stdout or done.stderr).strip()
    if done.returncode:
        raise BouquetError(said.splitlines()[-1] if said else "It does not say whether it takes this device.")
    return said
