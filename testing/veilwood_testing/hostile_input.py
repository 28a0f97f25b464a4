# SPDX-License-Identifier: Apache-2.0
"""Short texts that ask for hours or gigabytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import veilwood as vw
from veilwood.safe_io import MAX_DIGITS, MAX_NESTING

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)


MAX_SECONDS = 5.0  # 10^9,999,999 alone takes longer to compute


LONG_EXPONENT = "1e9999999"


LONG_NUMBERS = [
    LONG_EXPONENT,
    "1e-9999999",
    "-1e9_999_999",
    "1e+00009999999",
    f"1/{'9' * 5000}",
    "9" * 5000,
    "0." + "0" * 5000 + "1",
]


@contextmanager
def within_time_limit() -> Iterator[None]:
    start = time.process_time()
    yield
    assert time.process_time() - start < MAX_SECONDS


def nested_list(depth: int) -> str:
    return "[" * depth + "]" * depth


HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "unclosed": ("[" * 1_000_000, "nested|JSON"),
    "deep list": (nested_list(200_000), "nested"),
    "deep object": ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested"),
    "a little too deep": (nested_list(MAX_NESTING + 2), "nested"),
    "digits": ("9" * 5000, "digits"),
    "negative digits": ("-" + "9" * MAX_DIGITS, "digits"),
    "beyond floats": ("1e999", "finite"),
    "long exponent": (LONG_EXPONENT, "finite"),
    "not a number": ("[NaN]", "finite"),
    "infinity": ("-Infinity", "finite"),
    "twice": ('{"a": 1, "b": {"c": 1, "c": 1}}', "'c' occurs twice"),
    "half of a pair": ('"\\ud800"', "surrogates"),
    "no UTF-8": (b'"\xff"', "utf-8"),
    "empty": ("", "JSON"),
    "too much": ("1" + " " * 99, "99 bytes"),
}
