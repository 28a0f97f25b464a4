# SPDX-License-Identifier: Apache-2.0
"""Cells as SQL: tests of codes become nested CASE over raw values, and tables become GROUP BY.

A test of a number compares it with the smallest float that has the code, as a constant: so a row falls into the same
cell here and in Python, and no arithmetic is done on what a row holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from veilwood.data.counts import COIN, Cells, Coins, Split, Way, What
from veilwood.data.encoding import Encoding
from veilwood.engines.sql.dialects import EngineWords
from veilwood.errors import DomainTooLargeError

__all__ = ["CellWriter", "Writer", "batched"]

MOST_TEXT: Final = 250_000  # characters of a statement, about; one table may need more,
LARGEST_TEXT: Final = 8_000_000  # but not more than this
MOST_SELECTS: Final = 64
NOWHERE: Final = -(1 << 40)  # the cell of a row that is not counted; sums of parts stay below 0
_COIN_DIGITS: Final = 8  # hexadecimal


class Writer:
    """Writes the cells of an encoding's rows for one engine. Columns are f0, f1, ..., the target is t, the coin h."""

    def __init__(self, words: EngineWords, encoding: Encoding) -> None:
        self.words, self._encoding = words, encoding
        self._constants: dict[tuple[int, int], str] = {}
        self._coins = 1

    def cell(self, table: Cells, coins: Coins | None = None) -> str:
        """The number of a row's cell."""
        self._coins = 1 if coins is None else coins.n
        self._find_constants(table.parts)
        return " + ".join(self.way(part) for part in table.parts) or "0"

    def way(self, way: Way) -> str:
        """A number, or the tests that lead to one."""
        if isinstance(way, float):
            return self.words.number(way)
        if not isinstance(way, Split):
            return str(NOWHERE if way is None else way)
        x, missing = self._name(way.column), self._missing(way.column)
        pieces = list(zip(way.first, way.to, strict=True))
        if self._is_whole(way.column):
            return self._of_codes(x, way)
        if missing is not None and len(pieces) > 1 and pieces[-1][0] == missing:
            rest = self._searched(x, way.column, pieces[:-1])
            return f"CASE WHEN {x} IS NULL THEN {self.way(pieces[-1][1])} ELSE {rest} END"
        return self._searched(x, way.column, pieces)  # a missing number is below nothing: it goes to the last piece

    def coin(self, coins: Coins) -> str:
        """The number of a row, out of its hash h."""
        self._coins = coins.n
        return self.way(Split(COIN, tuple(range(coins.n)), tuple(range(coins.n))))

    def _searched(self, x: str, column: int, pieces: list[tuple[int, Way]]) -> str:
        if len(pieces) == 1:
            return self.way(pieces[0][1])
        half = len(pieces) // 2
        below, above = (self._searched(x, column, part) for part in (pieces[:half], pieces[half:]))
        return f"CASE WHEN {x} < {self._constant(column, pieces[half][0])} THEN {below} ELSE {above} END"

    def _of_codes(self, x: str, way: Split) -> str:
        """Tests of whole numbers: a product where cells follow one another, a search, or lists of codes."""
        targets = {_key(to): to for to in way.to}
        if len(way.to) > 2 and self._tells_all_apart(way) and all(isinstance(to, int) for to in way.to):
            numbers = np.array(way.to, np.int64)
            steps = np.unique(np.diff(numbers))
            if len(steps) == 1:
                return f"({x} * {steps[0]} + {numbers[0]})"
        if len(way.to) <= 2 * len(targets):
            return self._searched(x, way.column, list(zip(way.first, way.to, strict=True)))
        ends = [*way.first[1:], self._n_codes(way.column)]
        codes: dict[float, list[int]] = {}
        for start, end, to in zip(way.first, ends, way.to, strict=True):
            codes.setdefault(_key(to), []).extend(range(start, end))
        last = max(codes, key=lambda key: len(codes[key]))
        tests = "".join(
            f" WHEN {x} IN ({', '.join(map(str, mine))}) THEN {self.way(targets[key])}"
            for key, mine in codes.items()
            if key != last
        )
        return f"CASE{tests} ELSE {self.way(targets[last])} END" if tests else self.way(targets[last])

    def _tells_all_apart(self, way: Split) -> bool:
        """Whether each code is a piece of its own: the last piece too, which else has all codes from its first on."""
        return len(way.first) == self._n_codes(way.column)

    # -- columns -----------------------------------------------------------------------------------------------------

    def _name(self, column: int) -> str:
        return "h" if column == COIN else f"f{column}"

    def _is_whole(self, column: int) -> bool:
        return column != COIN and not self._encoding.columns[column].ordered

    def _n_codes(self, column: int) -> int:
        return self._encoding.columns[column].n_codes

    def _missing(self, column: int) -> int | None:
        return None if column == COIN else self._encoding.columns[column].missing_code

    # -- constants ---------------------------------------------------------------------------------------------------

    def _constant(self, column: int, code: int) -> str:
        if column == COIN:
            return self.words.text(f"{-(-code * 16**_COIN_DIGITS // self._coins):0{_COIN_DIGITS}x}")
        if self._is_whole(column):
            return str(code)
        if (column, code) not in self._constants:
            self._find(column, [code])
        return self._constants[column, code]

    def _find_constants(self, parts: Iterable[Way]) -> None:
        """Find the constants of all tests at once, a column at a time."""
        wanted: dict[int, set[int]] = {}
        pending = list(parts)
        while pending:
            way = pending.pop()
            if isinstance(way, Split):
                pending.extend(way.to)
                if way.column != COIN and not self._is_whole(way.column):
                    wanted.setdefault(way.column, set()).update(way.first[1:])
        for column, codes in wanted.items():
            missing = self._encoding.columns[column].missing_code
            self._find(column, sorted(c for c in codes if c != missing and (column, c) not in self._constants))

    def _find(self, column: int, codes: Sequence[int]) -> None:
        values = self._encoding.threshold(column, np.array(codes, np.int64))
        for code, value in zip(codes, values.tolist(), strict=True):
            self._constants[column, code] = self.words.number(value)

    # -- statements --------------------------------------------------------------------------------------------------

    def statements(
        self, tables: Sequence[Cells], what: What, rows: str, coins: Coins | None = None, columns: int = 0
    ) -> Iterator[str]:
        """Write the queries that add up the rows of tables; ``rows`` is a table or a query."""
        if coins is not None:
            hashed = self.hashed(coins.key, [f"f{i}" for i in range(columns)])
            rows = f"(SELECT veilwood_all.*, {hashed} AS h FROM {rows} AS veilwood_all)"
        inner, before = rows, ""
        if rows.startswith("("):  # a query, which is computed once; a table is read faster as it is
            inner = "veilwood_in"
            before = f"WITH {inner} AS {self.words.once}(SELECT * FROM {rows} AS veilwood_from) "
        sums = "t AS k, COUNT(*) AS n" if what == "classes" else "COUNT(*) AS n, SUM(t) AS s, SUM(t * t) AS q"
        group = "2, 3" if what == "classes" else "2"
        selects = (
            f"SELECT {number} AS b, {self.cell(table, coins)} AS c, {sums} FROM {inner} GROUP BY {group}"
            for number, table in enumerate(tables)
        )
        yield from batched(selects, before)

    def hashed(self, key: bytes, columns: Sequence[str]) -> str:
        """The keyed hash of what a row holds."""
        texts = [f"COALESCE(CAST({name} AS {self.words.types.texts}), '')" for name in (*columns, "t")]
        return self.words.hash(" || '|' || ".join([self.words.text(key.hex()), *texts]))


def _key(way: Way) -> float:
    return id(way) if way is None or isinstance(way, Split) else way


class CellWriter(Writer):
    """The same for rows whose columns are cells, which are whole numbers without nulls: c0, c1, ..."""

    def __init__(self, words: EngineWords, encoding: Encoding, n_cells: Sequence[int]) -> None:
        super().__init__(words, encoding)
        self._n_cells = n_cells

    def _name(self, column: int) -> str:
        return f"c{column}"

    def _is_whole(self, column: int) -> bool:
        return True

    def _n_codes(self, column: int) -> int:
        return self._n_cells[column]

    def _missing(self, column: int) -> int | None:
        return None

    def _of_codes(self, x: str, way: Split) -> str:
        numbers = [NOWHERE if to is None else to for to in way.to if not isinstance(to, Split)]
        if 2 < len(way.to) == len(numbers) and not self._tells_all_apart(way):
            lengths = np.diff([*way.first, self._n_codes(way.column)])
            found = self.words.looked_up(np.repeat(np.array(numbers, np.int64), lengths).tolist(), x)
            if found is not None:
                return found
        return super()._of_codes(x, way)


def batched(selects: Iterable[str], before: str = "") -> Iterator[str]:
    """Join queries into statements that engines accept."""
    held: list[str] = []
    length = 0
    for select in selects:
        if len(select) > LARGEST_TEXT:
            raise DomainTooLargeError(
                "a tree is too large to be written as one query. Hint: lower max_depth, or read the rows from files."
            )
        if held and (length + len(select) > MOST_TEXT or len(held) >= MOST_SELECTS):
            yield before + " UNION ALL ".join(held)
            held, length = [], 0
        held.append(select)
        length += len(select)
    if held:
        yield before + " UNION ALL ".join(held)
