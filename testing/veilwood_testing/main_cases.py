# SPDX-License-Identifier: Apache-2.0
"""Shared by cli/test_main.py and other tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from veilwood.cli.main import main

SMALL = ["--estimator", "random-trees", "--param", "n_estimators=4", "--param", "max_depth=3"]


FIT = ["fit", "visits.csv", "--schema", "visits.json", *SMALL]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)
