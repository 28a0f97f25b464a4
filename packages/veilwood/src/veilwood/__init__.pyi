# The public names, and where each is defined. ``__init__.py`` reads this file and imports a name when it is first used.
import veilwood_audit
import veilwood_engines.gpu
import veilwood_secure
import veilwood_service
from veilwood import datasets as datasets
from veilwood import plots as plots
from veilwood._version import __version__ as __version__
from veilwood.data.columns import Column as Column
from veilwood.data.dialect import Dialect as Dialect
from veilwood.data.file_source import spool as spool
from veilwood.data.relations import Query as Query
from veilwood.data.schema import Schema as Schema
from veilwood.data.tables import read_table as read_table
from veilwood.drafting.discover import Discovery as Discovery
from veilwood.drafting.discover import discover as discover
from veilwood.errors import BudgetExceededError as BudgetExceededError
from veilwood.errors import DomainTooLargeError as DomainTooLargeError
from veilwood.errors import LedgerError as LedgerError
from veilwood.errors import ModelFileError as ModelFileError
from veilwood.errors import NotPrivateError as NotPrivateError
from veilwood.errors import OutOfSchemaError as OutOfSchemaError
from veilwood.errors import PartyError as PartyError
from veilwood.errors import PrivacyWarning as PrivacyWarning
from veilwood.errors import SchemaError as SchemaError
from veilwood.errors import SignatureError as SignatureError
from veilwood.errors import UndeclaredSchemaError as UndeclaredSchemaError
from veilwood.errors import UtilityWarning as UtilityWarning
from veilwood.errors import VeilwoodError as VeilwoodError
from veilwood.estimators import *
from veilwood.evaluation.evaluate import Evaluation as Evaluation
from veilwood.evaluation.evaluate import evaluate as evaluate
from veilwood.models.file import load as load
from veilwood.models.file import save as save
from veilwood.models.file import skops_types as skops_types
from veilwood.models.measurements import export_measurements as export_measurements
from veilwood.models.measurements import rebuild as rebuild
from veilwood.models.onnx import export_onnx as export_onnx
from veilwood.privacy.accountant import process_spend as process_spend
from veilwood.privacy.certificate import PrivacyCertificate as PrivacyCertificate
from veilwood.privacy.ledger import Ledger as Ledger
from veilwood.privacy.ledger_stores import MemoryLedger as MemoryLedger
from veilwood.privacy.ledger_stores import SQLiteLedger as SQLiteLedger
from veilwood.privacy.ledger_stores import open_ledger as open_ledger
from veilwood.privacy.neighbours import Rows as Rows
from veilwood.privacy.neighbours import RowsOf as RowsOf
from veilwood.privacy.plan import Plan as Plan
from veilwood.reporting import report as report
from veilwood.search import PrivateSearch as PrivateSearch
from veilwood.series import ReleaseSeries as ReleaseSeries
from veilwood.series import assign_trees as assign_trees
from veilwood.tuning import Tuning as Tuning
from veilwood.tuning import tune as tune

audit = veilwood_audit
gpu = veilwood_engines.gpu
secure = veilwood_secure
service = veilwood_service
