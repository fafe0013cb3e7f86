"""The health probe against a real gRPC health service, and against none."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from bouquet.common.system.health import VARIABLE, main, problem
from bouquet.common.system.ports import free_port


@pytest.fixture
def service():
    servicer = health.HealthServicer()
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_serving_program_is_well_and_one_that_is_not_serving_is_not(service, monkeypatch):
    servicer, address = service
    assert problem(address, timeout=60) == ""
    monkeypatch.setenv(VARIABLE, address)
    assert main([]) is None
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert "not serving" in problem(address, timeout=60)


def test_nobody_there_and_no_address_say_so(monkeypatch):
    address = f"127.0.0.1:{free_port()}"
    assert main([address]) == f"{address} does not answer (unavailable)."
    monkeypatch.delenv(VARIABLE, raising=False)
    assert VARIABLE in main([])
