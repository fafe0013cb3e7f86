"""A device that says more than any has to say is not read for a while, and costs the others nothing."""

import asyncio

import pytest

from bouquet.common.wire import transfer
from bouquet.common.wire.flower import content_bytes
from bouquet.common.wire.transfer import BURST_SECONDS, FRAMES_A_SECOND, Pace
from tests.helpers.served_fleet import content


@pytest.fixture
def slept(monkeypatch):
    """The seconds that were slept, on a clock that nothing else moves."""
    found = []

    async def sleep(seconds):
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


def test_so_many_frames_a_second_and_as_many_at_once(slept):
    async def say(frames):
        pace = Pace(clock=lambda: 1000.0 + sum(slept))
        for _ in range(frames):
            await pace.keep()

    burst = round(BURST_SECONDS * FRAMES_A_SECOND)
    asyncio.run(say(burst - 1))
    assert slept == []
    asyncio.run(say(burst + 10 * FRAMES_A_SECOND))
    assert sum(slept) == pytest.approx(10, abs=0.2)


def test_who_floods_is_not_read_and_the_others_are_served(fleets, monkeypatch):
    fleet = fleets("mallory", "garden")
    mallory, garden = fleet.welcome("mallory"), fleet.welcome("garden")
    monkeypatch.setattr(transfer, "FRAMES_A_SECOND", 1e-9)  # the rest of the burst would be the last for long
    for _ in range(500):
        mallory.send(pong={})
    again = fleet.device("mallory", session=mallory.session, hello={"probe": True})  # calls count, too
    task = fleet.push(garden)
    garden.deliver(task, content_bytes(content(1000)))
    assert fleet.pull(task)[0].has_content()
    assert fleet.service.devices[mallory.node].stream.pongs <= 2
    assert again.frames == []
