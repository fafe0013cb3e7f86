"""What has arrived of a device, each part of it read once and nothing of it checked yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Message

from bouquet.common.protocol.compressed import packed_blocks
from bouquet.common.protocol.decoding import about
from bouquet.common.protocol.error_replies import Rest, owners_refusal, rest_of
from bouquet.common.protocol.names import CLIENT, CLIENT_ID, REFUSES
from bouquet.common.protocol.records import records_of


@dataclass(frozen=True)
class Arrival:
    """A message of a device, as nodes, filters and checks look at it.

    ``about`` is what the device says of itself, ``client`` what it calls itself, else its node, ``is_named`` whether it
    does, ``uploads`` whether a model is in it, ``owners_refusal`` why its owner lets it take no part, else empty, and
    ``rest`` that its owner does not let it work now.
    """

    message: Message
    about: Mapping[str, Any]
    client: str
    is_named: bool
    uploads: bool
    owners_refusal: str
    rest: Rest | None = None

    @classmethod
    def of(cls, message: Message) -> Arrival:
        """Read a message, whatever is in it."""
        node = f"node-{message.metadata.src_node_id}"
        if not message.has_content():
            rest = rest_of(message, {})
            return cls(message, about(message), node, False, False, owners_refusal(message), rest)
        content = message.content
        uploads = bool(records_of(content, ArrayRecord) or packed_blocks(content))
        said = about(message)
        given = said.get(CLIENT_ID)
        named = isinstance(given, str) and given
        refuses = str(said.get(REFUSES, ""))
        client = str(given) if named else node
        return cls(message, said, client, CLIENT in content, uploads, refuses, rest_of(message, said))
