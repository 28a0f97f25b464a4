# SPDX-License-Identifier: Apache-2.0
"""Arrow's datasets, which are loaded when files are read: a fit on a table in memory never needs them."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["arrow_datasets", "is_dataset", "is_scanner"]


def arrow_datasets() -> Any:
    """Return the module ``pyarrow.dataset``."""
    import pyarrow.dataset  # slow to load

    return pyarrow.dataset


def is_dataset(X: Any) -> bool:
    """Whether rows are given as a dataset of Arrow.

    >>> import pyarrow as pa
    >>> is_dataset("visits.csv"), is_dataset(arrow_datasets().dataset([pa.table({"age": [1]})]))
    (False, True)
    """
    return _is("Dataset", X)


def is_scanner(X: Any) -> bool:
    """Whether rows are given as a scanner of Arrow."""
    return _is("Scanner", X)


def _is(kind: str, X: Any) -> bool:
    """Compare with a class of ``pyarrow.dataset``; where nobody loaded that, nothing can be of it."""
    loaded = sys.modules.get("pyarrow.dataset")
    return loaded is not None and isinstance(X, getattr(loaded, kind))
