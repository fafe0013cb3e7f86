"""Simulated devices with data of their own: ``data.dataset = "own"``, a folder each."""

from __future__ import annotations

from bouquet.client.data.folder import client_folders
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.settings.sections import OWN_DATA


def one_client_a_folder(settings: Settings) -> Settings:
    """Of devices' own data, ``data.clients`` is the number of their folders; other settings stay as they are.

    Raises `BouquetError` where another number was asked for, and where there are no folders.
    """
    data = settings.data
    if data.dataset != OWN_DATA:
        return settings
    folders = client_folders(data.data_dir)
    if "clients" in data.model_fields_set and data.clients != len(folders):
        raise BouquetError(
            f"data.clients = {data.clients}, but data.data_dir = {data.data_dir!r} holds {len(folders)} folders "
            f"({', '.join(folder.name for folder in folders)}): one for each client. Leave data.clients out, or set it "
            f"to {len(folders)}."
        )
    return settings.with_overrides({"data.clients": len(folders)})
