# SPDX-License-Identifier: Apache-2.0
"""Streams of Arrow, which can be read once."""

from __future__ import annotations

import pytest

import veilwood as vw
from veilwood.data.open_rows import open_rows
from veilwood.errors import UseError
from veilwood_testing.relations_cases import ENCODING, SCHEMA, contents, without_people
from veilwood_testing.streams_cases import Stream

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_arrow_streams_are_read_once_unless_spooled() -> None:
    wanted = contents(open_rows(without_people(), None, ENCODING))
    for stream in (Stream(without_people()), without_people().to_reader(max_chunksize=77)):
        source = open_rows(stream, None, ENCODING)
        assert source.single_pass
        assert contents(source) == wanted
    with pytest.raises(UseError, match=r"vw\.spool"):
        vw.MedianForestClassifier(SCHEMA).fit(Stream(without_people()))
    spooled = open_rows(vw.spool(Stream(without_people())), None, ENCODING, batch_rows=300)
    assert not spooled.single_pass
    assert contents(spooled) == contents(spooled) == wanted
    assert vw.MedianForestClassifier(SCHEMA, n_estimators=2, max_depth=2).fit(vw.spool(without_people().to_reader()))
