"""The live page of a server: its report while the run goes on, its devices and earlier runs, ``/status.json``, and
``/metrics`` for Prometheus.

It only reads the run folder and those beside it, and answers nothing but GET. On a loopback address whoever is on this
machine may read it; on any other, whoever has the token: as ``Authorization: Bearer TOKEN``, or once as
``?token=TOKEN`` in a browser, which then keeps it as a cookie.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Query, Request, Response
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import make_folder, write_secret
from bouquet.common.system.ports import check_port_free, split_address
from bouquet.experiments.plots.run import plots_of
from bouquet.experiments.report.pages import embed
from bouquet.experiments.report.run_report import render_device, render_report
from bouquet.experiments.report.runs import render_runs, runs_in
from bouquet.monitor.page_connections import BriefConnection, listeners
from bouquet.monitor.prometheus import metrics_text
from bouquet.monitor.status import collect, status_of
from bouquet.server.record.reader import read_run
from bouquet.server.service.certificates import Certificates

TOKEN_VARIABLE = "BOUQUET_WEB_TOKEN"
TOKEN_FILE = "web.token"
COOKIE = "bouquet-token"
RENEW_SECONDS = 5
START_SECONDS = 30.0
LAST_ANSWERS_SECONDS = 2  # for whoever reads its answer when the server ends
SHORTEST_TOKEN = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

Next = Callable[[Request], Awaitable[Response]]
Newest = Annotated[int | None, Query(ge=2)]  # rounds


@dataclass(frozen=True)
class Access:
    """Who may read. Without ``token``, requests to ``hosts`` only: a page of another name is another site's."""

    token: str | None
    hosts: tuple[str, ...] = LOOPBACK_NAMES

    def allows(self, request: Request) -> bool:
        """Whether the request may be answered."""
        if self.token is None:
            return (request.url.hostname or "") in self.hosts
        given = request.headers.get("authorization", "").removeprefix("Bearer ") or request.cookies.get(COOKIE, "")
        return secrets.compare_digest(given.encode(), self.token.encode())


class Page:
    """The pages of the run in hand and of those beside it; plots are drawn again only when a round has ended."""

    def __init__(self, current: Callable[[], Path]) -> None:
        self.current = current
        self.nonce = secrets.token_urlsafe(16)
        self._lock = threading.Lock()
        self._version: Any = None
        self._figures: list[dict[str, str]] = []

    def html(self, name: str | None = None, newest: int | None = None) -> str:
        """The report as it is now, of the run in hand or one beside it. Raises `BouquetError` where there is none.

        Its curves are of all rounds, or of so many.
        """
        with self._lock:
            folder = self.folder(name)
            run = read_run(folder)
            version = (folder, len(run.rounds), run.summary is not None)
            if version != self._version:
                self._figures, self._version = embed(plots_of(run)), version
                run = read_run(folder)  # drawing takes its time, in which a round may end
            now = time.time()
            return render_report(run, status_of(run, now), self._live(now, newest), self._figures)

    def device(self, run: str | None, name: str, newest: int | None = None) -> str:
        """The page of a device in a run."""
        found, now = read_run(self.folder(run)), time.time()
        return render_device(found, status_of(found, now), name, self._live(now, newest))

    def runs(self, first: str | None = None, second: str | None = None, by: str = "began") -> str:
        """The page of all runs beside the one in hand, and of two of them."""
        parent = self.current().absolute().parent
        return render_runs(runs_in(parent), parent, first, second, by, self.nonce)

    def folder(self, name: str | None) -> Path:
        """That of the run of this name beside the run in hand; without a name the run in hand."""
        if name is None:
            return self.current()
        found = runs_in(self.current().absolute().parent)
        if name not in found:  # looked up, so that no name leads elsewhere
            raise BouquetError("There is no run of this name.")
        return found[name]

    def _live(self, now: float, newest: int | None) -> dict[str, Any]:
        return {"now": now, "newest": newest, "seconds": RENEW_SECONDS, "nonce": self.nonce}


def make_app(current: Callable[[], Path], access: Access) -> FastAPI:
    """The application that serves the run in the folder that ``current`` names."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(GZipMiddleware)  # the page of 600 devices goes to a phone every few seconds
    page = Page(current)
    headers = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
    headers["Content-Security-Policy"] = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'nonce-{page.nonce}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    @app.middleware("http")
    async def guard(request: Request, following: Next) -> Response:
        given = request.query_params.get("token")
        if given is not None and access.token and secrets.compare_digest(given.encode(), access.token.encode()):
            # Out of the address, so that it stays in no history, bookmark or screenshot; its other parts go with it.
            # To this page: //host/ would lead to another.
            answer: Response = RedirectResponse("/" + request.url.path.lstrip("/"), status_code=303)
            secure = request.url.scheme == "https"
            answer.set_cookie(COOKIE, access.token, httponly=True, samesite="strict", secure=secure, path="/")
        elif not access.allows(request):
            hint = "Give the token: Authorization: Bearer TOKEN, or ?token=TOKEN in a browser.\n"
            answer = PlainTextResponse(hint, status_code=401 if access.token else 403)
        else:
            answer = await following(request)
        answer.headers.update(headers)
        return answer

    @app.exception_handler(BouquetError)
    def not_there(request: Request, error: Exception) -> HTMLResponse:
        # A run that has not begun is looked for again.
        again = f'<!doctype html><meta http-equiv="refresh" content="{RENEW_SECONDS}"><p>{escape(str(error))}\n'
        return HTMLResponse(again, status_code=503)

    @app.get("/")
    def report(run: str | None = None, last: Newest = None) -> HTMLResponse:
        return HTMLResponse(page.html(run, last))

    @app.get("/device")
    def device(name: str, run: str | None = None, last: Newest = None) -> HTMLResponse:
        return HTMLResponse(page.device(run, name, last))

    @app.get("/runs")
    def runs(a: str | None = None, b: str | None = None, sort: str = "began") -> HTMLResponse:
        return HTMLResponse(page.runs(a, b, sort))

    @app.get("/status.json")
    def status() -> JSONResponse:
        return JSONResponse(collect(current()))

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(metrics_text(collect(current())), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


@contextlib.contextmanager
def serving(
    current: Callable[[], Path], address: str, token_folder: Path, certificates: Certificates | None
) -> Iterator[str]:
    """Serve the run in hand inside the ``with`` block; a sentence that says where, and who may read.

    With ``certificates`` an address that is not loopback speaks TLS. Raises `BouquetError` when the port is taken.
    """
    host, port = split_address(address)
    check_port_free(host, port, "the live page (--web)")
    local = is_loopback(host)
    token = os.environ.get(TOKEN_VARIABLE) or (None if local else kept_token(token_folder))
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise BouquetError(f"The token in {TOKEN_VARIABLE} is too short; at least {SHORTEST_TOKEN} characters.")
    secured = None if local else certificates
    config = uvicorn.Config(
        make_app(current, Access(token)),
        loop="asyncio",
        http=BriefConnection,
        ws="none",
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=LAST_ANSWERS_SECONDS,
        ssl_certfile=None if secured is None else secured.certificate,
        ssl_keyfile=None if secured is None else secured.key,
    )
    config.load()
    if secured is not None and config.ssl is not None:
        config.ssl.sni_callback = _renewing(secured)
    server = uvicorn.Server(config)
    sockets = listeners(host, port)
    thread = threading.Thread(target=server.run, args=(sockets,), name="live page", daemon=True)
    thread.start()
    deadline = time.monotonic() + START_SECONDS
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    if not server.started:
        raise BouquetError(f"The live page does not come up on {address}.")
    scheme = "https" if secured else "http"
    who = "" if token is None else f", with the token in {token_folder / TOKEN_FILE}"
    who = f", with the token in {TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE) else who
    plain = "" if local or secured else " It is not encrypted: whoever listens on the network reads along."
    try:
        yield f"Live page on {scheme}://{address}{who}.{plain}"
    finally:
        server.should_exit = True
        thread.join(timeout=2 * LAST_ANSWERS_SECONDS)


def _renewing(files: Certificates) -> Callable[[Any, str | None, ssl.SSLContext], None]:
    """Has connections after this one see the certificate as it is now."""

    def renew(_: Any, __: str | None, context: ssl.SSLContext) -> None:
        with contextlib.suppress(OSError):  # half of a pair, in the middle of a copy
            context.load_cert_chain(files.certificate, files.key)

    return renew


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def kept_token(folder: Path) -> str:
    """The token in ``folder``, made on first use and readable by its owner only."""
    path = folder / TOKEN_FILE
    try:
        if not path.exists():  # a service reads its keys and cannot write there
            make_folder(folder, f"{TOKEN_VARIABLE} is not set, and the folder to keep a token of the page in")
            write_secret(path, f"{secrets.token_urlsafe(32)}\n".encode())
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BouquetError(f"The token {path} cannot be read: {error.strerror}.") from None
