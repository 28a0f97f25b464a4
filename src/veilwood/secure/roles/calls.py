# SPDX-License-Identifier: Apache-2.0
"""One conversation of a client or user with all three servers at once; what is asked is in ``client`` and ``user``."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Self

from numpy.typing import NDArray

from veilwood.errors import SetupError
from veilwood.secure.mpc.shares import Pair, share, to_bytes
from veilwood.secure.roles.config import Config, Task
from veilwood.secure.roles.identity import Name, tls_context
from veilwood.secure.roles.transport import Channel, dial

__all__ = ["Call"]


class Call:
    """Connections to the three servers, about one task.

    Parameters
    ----------
    config : Config
        Of the client or user.
    task : Task
        What it is about; servers refuse if it means something else to them.
    do : str
        What is wanted.
    words
        More about it.
    """

    def __init__(self, config: Config, task: Task, do: str, **words: Any) -> None:
        context = tls_context(config.identity, config.servers_authority, listens=False)
        self.channels: list[Channel] = []
        session = secrets.token_hex(16)
        try:
            for party, address in enumerate(config.servers):
                name = Name("server", str(party))
                self.channels.append(
                    dial(
                        address.host,
                        address.people,
                        context,
                        name,
                        timeout=config.timeout,
                        limit=config.largest_message,
                    )
                )
            self.say(do=do, task=task.name, fingerprint=task.fingerprint(), session=session, **words)
        except BaseException:
            self.close()
            raise

    def say(self, **words: Any) -> None:
        """Tell all three the same."""
        for channel in self.channels:
            channel.say(**words)

    def go(self) -> None:
        """Tell server 0 that all three are ready to begin."""
        self.channels[0].say(go=True)

    def hear(self, *keys: str) -> list[dict[str, Any]]:
        """What each server says."""
        return [channel.hear(*keys, among=self.channels) for channel in self.channels]

    def receive(self) -> list[bytearray]:
        """A message of each server."""
        return [channel.receive(self.channels) for channel in self.channels]

    def send_shares(self, arrays: Mapping[str, NDArray[Any]], ring: Any) -> None:
        """Split arrays and send each server its shares, in the order it asks for."""
        wanted = [list(words["send"]) for words in self.hear("send")]
        if any(names != list(arrays) for names in wanted):
            raise SetupError(f"the servers ask for {wanted}, and there is {list(arrays)}. Hint: compare versions.")
        for array in arrays.values():
            pairs: list[Pair] = share(array, ring)
            for channel, pair in zip(self.channels, pairs, strict=True):
                channel.send(to_bytes(pair))

    def send_parts(self, parts: Sequence[bytes]) -> None:
        """Send each server its own."""
        for channel, part in zip(self.channels, parts, strict=True):
            channel.send(part)

    def close(self) -> None:
        """End the conversation."""
        for channel in self.channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
