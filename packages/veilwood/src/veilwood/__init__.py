# SPDX-License-Identifier: Apache-2.0
"""Veilwood: differentially private tree ensembles. Public names of the library."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from veilwood import datasets, estimators
from veilwood._version import __version__
from veilwood.data.columns import Column
from veilwood.data.dialect import Dialect
from veilwood.data.file_source import spool
from veilwood.data.relations import Query
from veilwood.data.schema import Schema
from veilwood.data.tables import read_table
from veilwood.drafting.discover import Discovery, discover
from veilwood.errors import (
    BudgetExceededError,
    DomainTooLargeError,
    LedgerError,
    ModelFileError,
    NotPrivateError,
    OutOfSchemaError,
    PartyError,
    PrivacyWarning,
    SchemaError,
    SetupError,
    SignatureError,
    UndeclaredSchemaError,
    UtilityWarning,
    VeilwoodError,
)
from veilwood.evaluation.evaluate import Evaluation, evaluate
from veilwood.privacy.accountant import process_spend
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.ledger_stores import MemoryLedger, SQLiteLedger, open_ledger
from veilwood.privacy.neighbours import Rows, RowsOf
from veilwood.privacy.plan import Plan
from veilwood.report import report
from veilwood.tune import Tuning, tune

if TYPE_CHECKING:
    import veilwood_secure as secure
    from veilwood import plots
    from veilwood.engines import gpu
    from veilwood.estimators import (
        GreedyForestClassifier,
        GreedyForestRegressor,
        MatrixForestClassifier,
        MatrixForestPredictor,
        MedianForestClassifier,
        MedianForestRegressor,
        PrivateForestClassifier,
        PrivateForestRegressor,
        RandomTreesClassifier,
        RandomTreesRegressor,
    )
    from veilwood.models.file import load, save, skops_types
    from veilwood.models.onnx import export_onnx
    from veilwood.search import PrivateSearch

__all__ = [
    "BudgetExceededError",
    "Column",
    "Dialect",
    "Discovery",
    "DomainTooLargeError",
    "Evaluation",
    "GreedyForestClassifier",
    "GreedyForestRegressor",
    "Ledger",
    "LedgerError",
    "MatrixForestClassifier",
    "MatrixForestPredictor",
    "MedianForestClassifier",
    "MedianForestRegressor",
    "MemoryLedger",
    "ModelFileError",
    "NotPrivateError",
    "OutOfSchemaError",
    "PartyError",
    "Plan",
    "PrivacyCertificate",
    "PrivacyWarning",
    "PrivateForestClassifier",
    "PrivateForestRegressor",
    "PrivateSearch",
    "Query",
    "RandomTreesClassifier",
    "RandomTreesRegressor",
    "Rows",
    "RowsOf",
    "SQLiteLedger",
    "Schema",
    "SchemaError",
    "SignatureError",
    "Tuning",
    "UndeclaredSchemaError",
    "UtilityWarning",
    "VeilwoodError",
    "__version__",
    "datasets",
    "discover",
    "evaluate",
    "export_onnx",
    "gpu",
    "load",
    "open_ledger",
    "plots",
    "process_spend",
    "read_table",
    "report",
    "save",
    "secure",
    "skops_types",
    "spool",
    "tune",
]

_HOMES: Final = {
    **dict.fromkeys(estimators.__all__, "estimators"),
    "load": "models.file",
    "save": "models.file",
    "export_onnx": "models.onnx",
    "skops_types": "models.file",
    "PrivateSearch": "search",
}

_SIBLINGS: Final = ("audit", "secure", "service")
"""Sibling packages that are attributes: ``vw.secure`` is ``veilwood_secure``."""


def _load_sibling(name: str) -> Any:
    try:
        return import_module(f"veilwood_{name}")
    except ModuleNotFoundError as error:
        if error.name != f"veilwood_{name}":
            raise
        raise SetupError(
            f"veilwood.{name} needs the package veilwood-{name}, which is not installed. "
            f"Hint: run pip install 'veilwood[{name}]'."
        ) from None


def __getattr__(name: str) -> Any:
    """Load estimators, model files, plots, the GPU's module and sibling packages on first use."""
    if name == "gpu":
        return import_module("veilwood.engines.gpu")
    if name == "plots":
        return import_module("veilwood.plots")
    if name in _SIBLINGS:
        return _load_sibling(name)
    if name in _HOMES:
        return getattr(import_module(f"veilwood.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
