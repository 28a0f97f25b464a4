# SPDX-License-Identifier: Apache-2.0
"""Seconds of the phases of matrix forests."""

from __future__ import annotations

import pytest

from veilwood_papers.mrf import runtime


def test_each_size_is_timed_for_ten_forests_and_three_in_short() -> None:
    for quick, times in ((False, 10), (True, 3)):
        jobs = runtime.list_jobs(quick)
        assert len(jobs) == times * len(runtime.SIZES)
        assert {job.table for job in jobs} == {size[0] for size in runtime.SIZES.values()}


def test_seconds_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.5, 4.0])
    monkeypatch.setattr("veilwood_papers.mrf.runtime.time.process_time", lambda: next(clock))
    assert runtime._time_call(lambda: "done") == (2.5, "done")
