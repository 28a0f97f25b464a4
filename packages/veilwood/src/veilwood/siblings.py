# SPDX-License-Identifier: Apache-2.0
"""Optional packages of this repository. The core never imports them, but loads one when an input or a call needs it.

Only the modules listed here may stand between a user's rows and the release door.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from typing import Any, Final, TypeVar

from veilwood.errors import SetupError


@dataclass(frozen=True)
class Sibling:
    """A module of another package of this repository, and the extra of the core that installs it."""

    module: str
    extra: str

    def load(self) -> Any:
        """Import the module. Raise SetupError, which names the extra, if its package is not installed."""
        try:
            return import_module(self.module)
        except ModuleNotFoundError as error:
            package = self.module.split(".")[0]
            if error.name != package:
                raise
            raise missing_package_error(package, self.extra) from None


def missing_package_error(package: str, extra: str) -> SetupError:
    """Return the error for a package that is not installed."""
    distribution = package.replace("_", "-")
    return SetupError(f"{distribution} is not installed. Hint: run pip install 'veilwood[{extra}]'.")


GPU: Final = Sibling("veilwood_engines.gpu", "gpu")
SQL_PREVIEW: Final = Sibling("veilwood_engines.sql.preview", "sql")
CLUSTER_SOURCE: Final = Sibling("veilwood_engines.cluster.source", "cluster")

_SQL: Final = Sibling("veilwood_engines.sql.source", "sql")
_DATABASES: Final = frozenset({"duckdb", "postgresql", "postgres", "sqlite"})  # schemes of addresses

_CLUSTERS: Final = {  # by the package of a frame's type
    package: Sibling("veilwood_engines.cluster.engines", extra)
    for package, extra in {"dask": "cluster", "pyspark": "spark", "ray": "ray"}.items()
}
_LAKES: Final = {  # by the package of a table's type
    package: Sibling("veilwood_engines.lakes", extra)
    for package, extra in {"deltalake": "delta", "pyiceberg": "iceberg"}.items()
}


def find_database(X: Any) -> Sibling | None:
    """Return the module for database tables if ``X`` is the address of one or an Ibis table, or None.

    >>> find_database("duckdb:///claims.db#visits").extra, find_database("visits.csv")
    ('sql', None)
    """
    if isinstance(X, str):
        scheme, separator, _ = X.partition("://")
        return _SQL if separator and scheme in _DATABASES else None
    is_ibis = _package_of(X) == "ibis" and hasattr(X, "compile") and hasattr(X, "schema")
    return _SQL if is_ibis else None


def find_cluster(X: Any) -> Sibling | None:
    """Return the module for cluster frames if ``X`` is an object of Dask, Spark or Ray, or None."""
    return _CLUSTERS.get(_package_of(X))


def find_lake(X: Any) -> Sibling | None:
    """Return the module for lake tables if ``X`` is a table of deltalake or pyiceberg, or None."""
    return _LAKES.get(_package_of(X)) if type(X).__name__ in ("DeltaTable", "Table", "StaticTable") else None


def load_lakes(extra: str) -> Any:
    """Load the module for lake tables in folders. ``extra`` is "delta" or "iceberg"."""
    return next(sibling for sibling in _LAKES.values() if sibling.extra == extra).load()


Method = TypeVar("Method", bound=Callable[..., Any])


def predict_on_clusters(method: Method) -> Method:
    """Extend a prediction method so that it accepts frames of Dask, Spark and Ray and predicts on their workers."""

    @wraps(method)
    def predict(self: Any, X: Any, **options: Any) -> Any:
        cluster = find_cluster(X)
        if cluster is None:
            return method(self, X, **options)
        return cluster.load().predict_frame(wraps(method)(partial(method, **options)), self, X)

    return predict  # type: ignore[return-value]


def _package_of(X: Any) -> str:
    return type(X).__module__.split(".")[0]
