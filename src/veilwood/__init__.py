# SPDX-License-Identifier: Apache-2.0
"""Veilwood: differentially private tree ensembles. The public names; everything else is in the modules."""

import importlib
from typing import TYPE_CHECKING, Any

from veilwood import datasets
from veilwood._version import __version__
from veilwood.data.columns import Column
from veilwood.data.schema import Schema
from veilwood.data.tables import read_table
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
    SignatureError,
    UndeclaredSchemaError,
    UtilityWarning,
    VeilwoodError,
)
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
from veilwood.models.file import load, save
from veilwood.models.onnx import export_onnx
from veilwood.privacy.certificate import PrivacyStatement
from veilwood.privacy.ledger import Ledger, MemoryLedger, SQLiteLedger, open_ledger
from veilwood.privacy.neighbours import Rows, RowsOf
from veilwood.privacy.plan import Plan
from veilwood.privacy.spending import spent_here
from veilwood.trees import gpu
from veilwood.tune import Tuning, tune

if TYPE_CHECKING:
    from veilwood import secure

__all__ = [
    "BudgetExceededError",
    "Column",
    "DomainTooLargeError",
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
    "PrivacyStatement",
    "PrivacyWarning",
    "PrivateForestClassifier",
    "PrivateForestRegressor",
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
    "export_onnx",
    "gpu",
    "load",
    "open_ledger",
    "read_table",
    "save",
    "secure",
    "spent_here",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Load ``secure`` when it is first used: it needs the extra of the same name."""
    if name == "secure":
        return importlib.import_module("veilwood.secure")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
