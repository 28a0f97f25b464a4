# SPDX-License-Identifier: Apache-2.0
"""HTTP service for private training, predictions and queries. All releases pass through the release door.

Needs the extra ``service``. ``veilwood serve`` starts a service; ``Client`` connects to one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilwood_service.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    """Import the client on first use."""
    if name == "Client":
        from veilwood_service.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
