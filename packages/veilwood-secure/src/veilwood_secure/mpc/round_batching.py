# SPDX-License-Identifier: Apache-2.0
"""Lockstep execution: several programs, such as the trees of a forest, share communication rounds.

Each program runs until it needs a message, then the next program runs. When all programs wait, their messages are
combined into one. The schedule depends only on the order of the programs, so it is the same at all three servers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np

from veilwood.arrays import ArrayLike, Ints
from veilwood_secure.mpc.engine import Bits, Engine, Parts, Product, RingArray, Shared, concatenate

Result = TypeVar("Result")
Kind = TypeVar("Kind", Shared, Bits)


def run_in_lockstep(engine: Engine, programs: Sequence[Callable[[Engine], Result]]) -> list[Result]:
    """Run independent programs in common rounds and return their results in order.

    Examples
    --------
    >>> from veilwood_testing.mpc_engines import PlainEngine
    >>> engine = PlainEngine()
    >>> x = engine.constant([3, -4])
    >>> found = run_in_lockstep(engine, [lambda e: e.is_negative(x), lambda e: e.is_negative(x - 5)])
    >>> [engine.open(one).tolist() for one in found], engine.stats.rounds
    ([[0, 1], [1, 1]], 11)
    """
    if len(programs) == 1:
        return [programs[0](engine)]
    lanes = [_Lane(engine, program) for program in programs]
    try:
        answers: list[Any] = [None] * len(lanes)
        while any(not lane.is_done for lane in lanes):
            for lane, answer in zip(lanes, answers, strict=True):
                if not lane.is_done:
                    lane.run_on(answer)
            requests = [None if lane.is_done else lane.pending_request for lane in lanes]
            answers = _serve_requests(engine, requests)
    finally:
        for lane in lanes:
            lane.stop_program()
    return [lane.result for lane in lanes]


class _LaneStopped(BaseException):
    """Raised inside a program because another program failed."""


class _Lane(Engine):
    """Engine of one program. Operations that need a message wait for the other programs."""

    def __init__(self, engine: Engine, program: Callable[[Engine], Any]) -> None:
        super().__init__(engine.party, engine.ring.type, engine.counted_bits)
        self.stats, self._engine, self.is_checked = engine.stats, engine, engine.is_checked
        self.is_done, self.pending_request = False, ("", ())
        self.result: Any = None
        self._error: BaseException | None = None
        self._may_run, self._has_paused, self._stopped = threading.Semaphore(0), threading.Semaphore(0), False
        context = copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run_program, program), daemon=True)
        self._thread.start()

    def _run_program(self, program: Callable[[Engine], Any]) -> None:
        self._may_run.acquire()
        try:
            if not self._stopped:
                self.result = program(self)
        except _LaneStopped:
            pass
        except BaseException as error:
            self._error = error
        self.is_done = True
        self._has_paused.release()

    def run_on(self, answer: Any) -> None:
        """Run the program until it needs a message or ends."""
        self._answer = answer
        self._may_run.release()
        self._has_paused.acquire()
        if self._error is not None:
            raise self._error

    def stop_program(self) -> None:
        """Stop the program wherever it is."""
        if not self.is_done:
            self._stopped = True
            self.run_on(None)

    def _request_operation(self, kind: str, *arguments: Any) -> Any:
        self.pending_request = (kind, arguments)
        self._has_paused.release()
        self._may_run.acquire()
        if self._stopped:
            raise _LaneStopped
        return self._answer

    # Without a message

    def constant(self, values: ArrayLike) -> Shared:
        """Return public integers as a shared array."""
        return self._engine.constant(values)

    def load(self, parts: Sequence[RingArray]) -> Shared:
        """Return the shared array of which this server holds the shares `parts`."""
        return self._engine.load(parts)

    def random_words(self, shape: tuple[int, ...], dtype: type[np.unsignedinteger[Any]] = np.uint64) -> Bits:
        """Return words of uniform secret bits."""
        return self._engine.random_words(shape, dtype)

    def isolate_parts(self, x: Parts, kind: type[Kind]) -> list[Kind]:
        """Return a sharing of each of the three shares."""
        return self._engine.isolate_parts(x, kind)

    # With a message

    def mul(self, x: Shared, y: Shared) -> Shared:
        """Return the products of secrets."""
        return self._request_operation("product", Product("mul", x, y))  # type: ignore[no-any-return]

    def matmul(self, x: Shared, y: Shared) -> Shared:
        """Return the matrix product."""
        return self._request_operation("product", Product("matmul", x, y))  # type: ignore[no-any-return]

    def dot(self, x: Shared, y: Shared, axis: int) -> Shared:
        """Return the products summed along an axis."""
        return self._request_operation("product", Product("dot", x, y, axis))  # type: ignore[no-any-return]

    def multiply_many(self, products: Sequence[Product]) -> list[Shared]:
        """Return several products."""
        return [self._request_operation("product", product) for product in products]

    def land(self, x: Bits, y: Bits) -> Bits:
        """Return the bitwise and of secret words."""
        return self._request_operation("land", x, y)  # type: ignore[no-any-return]

    def refresh(self, x: Shared) -> Shared:
        """Return the same secrets in fresh shares."""
        return self._request_operation("refresh", x)  # type: ignore[no-any-return]

    def open(self, x: Shared) -> Ints:
        """Open the integers."""
        return self._request_operation("open", x)  # type: ignore[no-any-return]

    def deal_sum(self, draw: Callable[[int], Ints], shape: tuple[int, ...]) -> Shared:
        """Return the shared sum of three arrays, one drawn by each server."""
        return self._request_operation("alone", self._engine.deal_sum, draw, shape)  # type: ignore[no-any-return]

    def toss_coins(self, count: int) -> Ints:
        """Return uniform public words."""
        return self._request_operation("alone", self._engine.toss_coins, count)  # type: ignore[no-any-return]

    def is_all_zero(self, x: Shared) -> bool:
        """Return True if all secrets are zero."""
        return self._request_operation("alone", self._engine.is_all_zero, x)  # type: ignore[no-any-return]

    def is_consistent(self, x: Shared) -> bool:
        """Return True if servers that hold the same share hold equal values."""
        return self._request_operation("alone", self._engine.is_consistent, x)  # type: ignore[no-any-return]


def _serve_requests(engine: Engine, requests: Sequence[tuple[str, Any] | None]) -> list[Any]:
    """Serve the pending requests of all programs, with one message per kind; return the answers."""
    answers: list[Any] = [None] * len(requests)
    groups: dict[Any, list[int]] = {}
    for index, request in enumerate(requests):
        if request is not None:
            kind, arguments = request
            word = arguments[0].dtype if kind == "land" else None
            groups.setdefault((kind, word), []).append(index)
    for (kind, _), indices in groups.items():
        batch = [requests[index][1] for index in indices]  # type: ignore[index]
        for index, answer in zip(indices, _serve_batch(engine, kind, batch), strict=True):
            answers[index] = answer
    return answers


def _serve_batch(engine: Engine, kind: str, requests: Sequence[Any]) -> Sequence[Any]:
    if kind == "alone":
        return [call(*arguments) for call, *arguments in requests]
    if kind == "product":
        return engine.multiply_many([product for (product,) in requests])
    shapes = [np.broadcast_shapes(*(one.shape for one in arguments)) for arguments in requests]
    joined = [_flatten_arrays([arguments[i] for arguments in requests], shapes) for i in range(len(requests[0]))]
    if kind == "open":
        opened = engine.open(joined[0])
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(np.split(opened, ends[:-1]), shapes, strict=True)]
    return _split_arrays(getattr(engine, kind)(*joined), shapes)


def _flatten_arrays(arrays: Sequence[Kind], shapes: Sequence[tuple[int, ...]]) -> Kind:
    return concatenate([one.broadcast_to(shape).reshape(-1) for one, shape in zip(arrays, shapes, strict=True)])


def _split_arrays(joined: Kind, shapes: Sequence[tuple[int, ...]]) -> list[Kind]:
    arrays, start = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        arrays.append(joined[start : start + size].reshape(*shape))
        start += size
    return arrays
