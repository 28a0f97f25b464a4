# SPDX-License-Identifier: Apache-2.0
"""PrivateForest's questions to rows in shares: the same counts as in memory, gradients rounded, and never too large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilwood.data import counts as asked
from veilwood.data.batches import Batch, Source
from veilwood.data.counts import ContingencyTable
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.data.schema import Schema
from veilwood.forests.adaptive.contingency import bin_columns
from veilwood.forests.adaptive.row_backend import (
    GRADIENT_UNITS,
    LEVEL_UNITS,
    SCORE_UNITS,
    MemoryBackend,
    gradient_norms,
)
from veilwood_secure.mpc.engine import Bits
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols import circuits
from veilwood_secure.protocols.joint_forest import RING
from veilwood_secure.protocols.shared_backend import GRADIENT_UNIT, BitslicedRows
from veilwood_testing.mpc_engines import PlainEngine

N = 150


def schema(n_classes: int) -> Schema:
    target: dict[str, Any] = {"name": "y", "kind": "numeric", "lower": 0, "upper": 1}
    if n_classes:
        target = {"name": "y", "kind": "categorical", "values": [str(c) for c in range(n_classes)]}
    return Schema.from_dict({
        "name": "s", "task": "classification" if n_classes else "regression", "target": "y",
        "columns": [
            {"name": "a", "kind": "numeric", "lower": -1, "upper": 1},
            {"name": "b", "kind": "categorical", "values": ["u", "v", "w"]},
            {"name": "c", "kind": "categorical", "values": ["x", "z"]}, target,
        ],
    })  # fmt: skip


class Both:
    """The same rows in memory and on shares, in the clear."""

    def __init__(self, n_classes: int, engine: Any = None) -> None:
        rng = np.random.default_rng(n_classes)
        self.k, self.outputs = n_classes, n_classes if n_classes > 2 else 1
        self.columns = bin_columns(Encoding(schema(n_classes), "grid"))
        self.cells = np.stack([rng.integers(0, column.n_bins, N) for column in self.columns])
        self.target = rng.integers(0, n_classes or TARGET_LEVELS + 1, N)
        codes = np.stack([column.starts[cell] for column, cell in zip(self.columns, self.cells, strict=True)], axis=1)
        batch = Batch(codes.astype(np.uint16), self.target.astype(np.int32), 0, 0)
        self.held = MemoryBackend(self.columns, Source(lambda: iter([lambda: batch])), self.outputs)
        self.engine = engine or PlainEngine(RING)
        self.shared: Any = self.rows_in(self.engine)

    def rows_in(self, engine: Any, party: int | None = None) -> Any:
        def bits(values: Any, n: int) -> Bits:
            words = circuits.pack_bits(circuits.binary_digits(values, n))
            given = (words,) if party is None else share(words, RING)[party]
            return circuits.decompose_bits(engine, engine.load(given))

        cells = [bits(cell, (c.n_bins - 1).bit_length()) for cell, c in zip(self.cells, self.columns, strict=True)]
        n_digits = (self.k - 1).bit_length() if self.k else 16
        there = bits(np.ones(N, int), 1)[0]
        return BitslicedRows.from_shares(engine, cells, bits(self.target, n_digits), there).make_backend(
            self.columns, self.outputs
        )

    def add(self, table: ContingencyTable, values: Any) -> None:
        self.held.add_scores(table, np.asarray(values, np.int32))
        self.shared.add_scores(table, np.asarray(values, np.int32))

    def answers(self, question: Any) -> tuple[Any, Any]:
        return self.held.run(question), self.engine.open(self.shared.run(question).shared)


def tables(both: Both) -> list[ContingencyTable]:
    a, b, c = (column.equal_mass_groups(column.prior, 4) for column in both.columns)
    return [
        ContingencyTable(()),
        ContingencyTable((a,)),
        ContingencyTable((b,)),
        ContingencyTable((a, b)),
        ContingencyTable((b, c, a)),
        ContingencyTable((a, c)),
    ]


@pytest.mark.parametrize("n_classes", [0, 2, 4])
def test_counts_are_those_of_rows_in_memory(n_classes: int) -> None:
    both = Both(n_classes)
    own = [asked.ClassesByCell([asked.ALL_ROWS], n_classes), asked.ClassesByCell(tables(both), n_classes)]
    marks = np.rint(np.geomspace(1e-3, 1, 9) * TARGET_LEVELS * LEVEL_UNITS).astype(np.int64)
    numbers = [asked.TargetHistogram(64), asked.TargetSums(), asked.ResidualHistogram(marks)]
    shift = np.arange(both.outputs)[None] * 700 + 300_000 * (n_classes == 0)
    both.add(ContingencyTable(()), shift)
    for question in [
        *(own if n_classes else numbers), asked.RowsByCell(ContingencyTable((both.columns[0].ungrouped_axis(),))),
        *(asked.RowsByCell(table) for table in tables(both)),
    ]:  # fmt: skip
        here, there = both.answers(question)
        assert np.array_equal(here, there), question


@pytest.mark.parametrize("n_classes", [0, 2, 3, 4])
def test_gradients_are_close_and_within_their_norms(n_classes: int) -> None:
    both = Both(n_classes)
    rng = np.random.default_rng(9)
    large = 4 * SCORE_UNITS if n_classes else 3000 * LEVEL_UNITS
    both.add(ContingencyTable(()), np.full((1, both.outputs), 0 if n_classes else 30_000 * LEVEL_UNITS))
    for table in tables(both)[1:]:
        both.add(table, rng.integers(-large, large, (table.n_cells, both.outputs)))
    limit = GRADIENT_UNITS * 3 // 4 if n_classes == 2 else 9_000 * LEVEL_UNITS
    here, there = both.answers(asked.GradientSums(tables(both), n_classes, limit))
    assert here.shape == there.shape
    rows = np.concatenate([both.held.run(asked.RowsByCell(table)) for table in tables(both)])
    assert (np.abs(here - there) <= rows[:, None] * 0.04 * GRADIENT_UNITS).all()
    assert np.abs(here - there)[0].max() < 0.01 * N * GRADIENT_UNITS  # errors of single rows cancel
    l1, _ = gradient_norms(n_classes, limit)
    alone = np.asarray(both.engine.open(both.shared._row_gradients(n_classes, limit))) * GRADIENT_UNIT
    assert np.abs(alone).sum(axis=0).max() <= l1


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_gain_of_evidence_is_close_and_bounded(n_classes: int) -> None:
    both = Both(n_classes)
    rng, start = np.random.default_rng(3), np.arange(both.outputs, dtype=np.int32) * 300
    both.add(ContingencyTable(()), start[None])
    for table in tables(both)[1:]:
        both.add(table, rng.integers(-SCORE_UNITS, SCORE_UNITS, (table.n_cells, both.outputs)))
    here, there = both.answers(asked.EvidenceGain(start, n_classes, GRADIENT_UNITS, 5 * SCORE_UNITS))
    assert abs(here - there)[0] <= 0.05 * SCORE_UNITS * N
    assert abs(here)[0] > 0.2 * SCORE_UNITS * N
    for max_gain in (1, 100):
        _, cut = both.answers(asked.EvidenceGain(start, n_classes, GRADIENT_UNITS, max_gain))
        assert abs(cut)[0] <= max_gain * N


@pytest.mark.parametrize("extreme", [-(2**31), -(2**24), 2**24, 2**31 - 1])
def test_scores_far_out_leave_gradients_within_their_norms(extreme: int) -> None:
    for n_classes in (0, 2, 3):
        both = Both(n_classes)
        table = tables(both)[2]
        values = np.zeros((table.n_cells, both.outputs), np.int64)
        values[0, 0] = extreme
        both.add(table, values)
        for limit in (1, 17, 4096) if n_classes == 0 else (2048, 4096):
            alone = np.asarray(both.engine.open(both.shared._row_gradients(n_classes, limit))) * GRADIENT_UNIT
            assert np.abs(alone).sum(axis=0).max() <= gradient_norms(n_classes, limit)[0]
            here, there = both.answers(asked.GradientSums([table], n_classes, limit))
            if n_classes:
                assert np.abs(here - there).max() < 0.04 * N * GRADIENT_UNITS


def test_a_cell_that_no_column_has_counts_nowhere() -> None:
    both = Both(2)
    both.cells[1, :10] = 3  # of three values
    both.shared = both.rows_in(both.engine)
    found = both.engine.open(both.shared.run(asked.RowsByCell(tables(both)[2])).shared)
    assert found.sum() == N - 10


def test_three_servers_answer_what_one_would() -> None:
    both = Both(2)
    question = asked.GradientSums(tables(both), 2, GRADIENT_UNITS)
    _, alone = both.answers(question)

    shares: dict[Any, Any] = {}

    def fixed(values: Any, ring: Any) -> Any:
        return shares.setdefault(values.tobytes(), share(values, ring))

    def program(links: Links) -> Any:
        engine = ReplicatedEngine(links, ring=RING)

        def bits(values: Any, n: int) -> Bits:
            words = circuits.pack_bits(circuits.binary_digits(values, n))
            return circuits.decompose_bits(engine, engine.load(fixed(words, RING)[links.party]))

        cells = [bits(cell, (c.n_bins - 1).bit_length()) for cell, c in zip(both.cells, both.columns, strict=True)]
        rows = BitslicedRows.from_shares(engine, cells, bits(both.target, 1), bits(np.ones(N, int), 1)[0])
        answer: Any = rows.make_backend(both.columns, 1).run(question)
        return engine.open(answer.shared)

    for values in [*zip(both.cells, [(c.n_bins - 1).bit_length() for c in both.columns], strict=True)]:
        fixed(circuits.pack_bits(circuits.binary_digits(*values)), RING)
    fixed(circuits.pack_bits(circuits.binary_digits(both.target, 1)), RING)
    fixed(circuits.pack_bits(circuits.binary_digits(np.ones(N, int), 1)), RING)
    for found in run_in_threads(program):
        assert np.array_equal(found, alone)


# -- circuits --------------------------------------------------------------------------------------------------------
