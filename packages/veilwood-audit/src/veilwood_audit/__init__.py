# SPDX-License-Identifier: Apache-2.0
"""Audits of privacy claims. An audit can refute a guarantee and never proves one; proofs are in ``proofs/``."""

from veilwood_audit.noninterference import diff_values, find_leaks, walk_values
from veilwood_audit.statistics import (
    ALPHA,
    Distances,
    epsilon_lower_bound,
    neighbouring_tables,
    one_run_lower_bound,
    tradeoff_lower_bound,
    worst_distances,
    worst_log_ratio,
)
from veilwood_audit.worst_pair import find_worst_pair, hockey_stick_bound, replayed_loss, search_worst_pair

__all__ = [
    "ALPHA",
    "Distances",
    "diff_values",
    "epsilon_lower_bound",
    "find_leaks",
    "find_worst_pair",
    "hockey_stick_bound",
    "neighbouring_tables",
    "one_run_lower_bound",
    "replayed_loss",
    "search_worst_pair",
    "tradeoff_lower_bound",
    "walk_values",
    "worst_distances",
    "worst_log_ratio",
]
