# SPDX-License-Identifier: Apache-2.0
"""The service: private answers, training and budgets over HTTP. Everything private still leaves by the door alone.

Needs the extra ``service``. ``Client`` talks to a running one; ``veilwood serve`` starts one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilwood_service.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    """Load the client when it is first used."""
    if name == "Client":
        from veilwood_service.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
