from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.helpers.reached_servers import PROXY_NAMES, Federation, made


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def grpc_server() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("keys")
    authority = made(folder, "ca", from_day=-9, to_day=9)
    pair = made(folder, "server", authority)
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.certificate.read_bytes())], authority.certificate.read_bytes(), True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield Federation(folder, authority, pair, made(folder, "device", authority), f"127.0.0.1:{port}")
    server.stop(None).wait()
