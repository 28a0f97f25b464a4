# SPDX-License-Identifier: Apache-2.0
"""Files of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilwood.errors import FileError
from veilwood_papers.runner import ResultStore


@pytest.mark.parametrize("text", ["no,head\n", "job,panel,curve,x,measure,repeat,value\na,b,c\n"])
def test_a_damaged_file_of_results_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "toy.csv").write_text(text)
    with pytest.raises(FileError, match="Hint"):
        ResultStore(tmp_path / "toy.csv")
