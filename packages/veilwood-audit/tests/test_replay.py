# SPDX-License-Identifier: Apache-2.0
"""A replay gives a fit the exact answers it got before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood_audit.attacks import canary_schema, record_releases
from veilwood_audit.noninterference import force_outcomes

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_a_replayed_fit_gets_the_answers_it_got() -> None:
    schema = canary_schema("classification", 4, 2)
    table = pd.DataFrame([["0", "1", "0", "1"]] * 40, columns=list(schema.feature_names))
    target = np.array(["yes", "no"] * 20, dtype=object)

    def fit(rows: int) -> Any:
        forest = vw.MedianForestClassifier(schema, n_estimators=2, max_depth=2, random_state=0, trees="shared")
        return forest.fit(table[:rows], target[:rows])

    with record_releases() as heard:
        first = fit(40)
    with force_outcomes(answers=[out for _, out, _ in heard]) as passages:
        again = fit(7)
    assert (first.predict_proba(table) == again.predict_proba(table)).all()
    assert [passage.step for passage in passages] == [step for step, _, _ in heard]
    assert int(passages[-1].exact.sum()) == 2 * 7  # type: ignore[union-attr]
