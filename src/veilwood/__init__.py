# SPDX-License-Identifier: Apache-2.0
"""Veilwood: differentially private tree ensembles. The public names; everything else is in the modules."""

from veilwood import datasets
from veilwood._version import __version__
from veilwood.columns import Column
from veilwood.errors import (
    BudgetExceededError,
    DomainTooLargeError,
    LedgerError,
    ModelFileError,
    OutOfSchemaError,
    PrivacyWarning,
    SchemaError,
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
    RandomTreesClassifier,
    RandomTreesRegressor,
)
from veilwood.ledger import Ledger, MemoryLedger, SQLiteLedger, open_ledger
from veilwood.model_file import load, save
from veilwood.onnx_export import export_onnx
from veilwood.plan import Plan
from veilwood.privacy import Rows, RowsOf
from veilwood.schema import Schema
from veilwood.sources import read_table
from veilwood.statement import PrivacyStatement
from veilwood.tune import Tuning, tune

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
    "OutOfSchemaError",
    "Plan",
    "PrivacyStatement",
    "PrivacyWarning",
    "RandomTreesClassifier",
    "RandomTreesRegressor",
    "Rows",
    "RowsOf",
    "SQLiteLedger",
    "Schema",
    "SchemaError",
    "Tuning",
    "UndeclaredSchemaError",
    "UtilityWarning",
    "VeilwoodError",
    "__version__",
    "datasets",
    "export_onnx",
    "load",
    "open_ledger",
    "read_table",
    "save",
    "tune",
]
