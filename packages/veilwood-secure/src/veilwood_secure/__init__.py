# SPDX-License-Identifier: Apache-2.0
"""Training and prediction on secret shares among three servers, with differential privacy.

Start with ``local_servers``, ``Owner`` and ``User``; docs/owners.md describes real deployments.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from veilwood.errors import SetupError

if TYPE_CHECKING:
    from veilwood_secure.roles.config import Config, Task
    from veilwood_secure.roles.local import local_servers
    from veilwood_secure.roles.owner import Owner
    from veilwood_secure.roles.server import Server
    from veilwood_secure.roles.user import User

__all__ = ["Config", "Owner", "Server", "Task", "User", "local_servers"]

MISSING_EXTRA_MESSAGE = (
    "secure training needs a package that is not installed. Hint: run pip install 'veilwood[secure]'"
)

_MODULES = {"Owner": "owner", "Config": "config", "Server": "server", "Task": "config", "User": "user"}


def __getattr__(name: str) -> Any:
    """Load a public name on first use: the engine alone needs fewer packages than the roles."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(f"{__name__}.roles.{_MODULES.get(name, 'local')}")
    except ModuleNotFoundError as error:
        if error.name != "cryptography":
            raise
        raise SetupError(MISSING_EXTRA_MESSAGE) from None
    return getattr(home, name)
