"""``bouquet init``: a draft held to the data themselves, and what the server needs beside its settings."""

from __future__ import annotations

import contextlib
import socket

from bouquet.begin.draft import Draft, name_of
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings, parse_settings
from bouquet.keys.store import DEFAULT, add_device, init_keys, list_devices


def settings_of(draft: Draft) -> Settings:
    """The settings that the draft says, checked against the data themselves.

    Raises `BouquetError`, naming device and file, where what was seen does not fit.
    """
    from bouquet.client.context import own_data
    from bouquet.experiments.simulation.own_data import one_client_a_folder
    from bouquet.experiments.simulation.run import check

    settings = parse_settings(draft.sections, {})
    if len(draft.devices) > 1:
        check(one_client_a_folder(settings))
    else:
        own_data(settings, str(draft.devices[0]))
    return settings


def server_files(draft: Draft) -> list[str]:
    """Make the keys of the server and of each device that was seen, in ``keys``; what was made, a line each.

    Keys that are there stay, and devices that are registered.
    """
    said, names = [], _own_names()
    try:
        there = {device.name for device in list_devices(DEFAULT)}
    except BouquetError:
        init_keys(DEFAULT, names)
        there = set()
        said.append(f"{DEFAULT}: the server's, for {', '.join(names)}; another name: bouquet keys server --host NAME")
    for device in draft.devices if len(draft.devices) > 1 else ():
        name = name_of(device)
        if name not in there:
            said.append(f"{add_device(DEFAULT, name)}: copy it to that device")
    return said


def _own_names() -> list[str]:
    """What other machines may call this one: its name, and the address of the way out."""
    names = [socket.gethostname()]
    # Without a network there is none.
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_out:
        way_out.connect(("192.0.2.1", 9))  # sends nothing; an address that nobody has
        names.append(way_out.getsockname()[0])
    return names
