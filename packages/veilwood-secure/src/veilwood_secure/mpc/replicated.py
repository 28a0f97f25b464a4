# SPDX-License-Identifier: Apache-2.0
"""`ReplicatedEngine`: engine of one of three servers that compute on replicated shares (Araki et al., CCS 2016).

The interface and its circuits are in engine.py. Links between threads, for tests, are here; links over TLS are in
``roles.transport``.

Shares of an array x, and keys, at server i (all indices modulo 3):

| symbol | meaning |
|---|---|
| x_0 + x_1 + x_2 = x | shares of an integer (for bits, exclusive or instead of the sum) |
| (x_i, x_(i+1)) | shares of server i; share j is known to servers j and j-1 |
| k_j | secret key of servers j and j-1; server i holds k_i and k_(i+1) |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from types import EllipsisType
from typing import Any, Protocol, TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from veilwood.arrays import ArrayLike, Ints
from veilwood.errors import MechanismError, PartyError
from veilwood.privacy import entropy
from veilwood_secure.mpc import shares as arithmetic
from veilwood_secure.mpc.engine import Bits, Engine, Kind, Parts, Product, RingArray, Shared, as_ring_array

Buffer = bytes | bytearray | memoryview
Result = TypeVar("Result")
THREAD_TIMEOUT_S = 120.0  # seconds that a thread waits for a message from another thread


class Links(Protocol):
    """Channels from one server to the other two: private, authentic, in order."""

    party: int

    def send(self, to: int, data: Buffer) -> None:
        """Send a message without waiting for the other server to read it. The caller must not change `data` later."""

    def receive(self, sender: int) -> Buffer:
        """Wait for the next message from another server and return it."""


class OwnerChannel(Protocol):
    """A channel between a server and an owner that stays online."""

    def send(self, data: Any) -> None:
        """Send a message."""

    def receive(self) -> Any:
        """Return the next message."""


class OpeningLog(Protocol):
    """Record of openings, so that an interrupted computation opens no value twice."""

    def open(self, x: Shared, reveal: Callable[[Shared], Ints]) -> Ints:
        """Return ``reveal(x)``, or the recorded result of this opening."""


class ThreadLinks:
    """Links between three threads, for tests."""

    def __init__(self, party: int, queues: dict[tuple[int, int], SimpleQueue[Buffer | None]]) -> None:
        self.party = party
        self._queues = queues

    def send(self, to: int, data: Buffer) -> None:
        """Put a message into the queue to another thread."""
        self._queues[self.party, to].put(data)

    def receive(self, sender: int) -> Buffer:
        """Return the next message from another thread."""
        try:
            data = self._queues[sender, self.party].get(timeout=THREAD_TIMEOUT_S)
        except Empty:
            data = None
        if data is None:
            raise PartyError(f"server {sender} stopped. Hint: read the error of that server.", party=f"server {sender}")
        return data

    def close(self) -> None:
        """Signal the end of messages to both other threads."""
        for other in range(3):
            if other != self.party:
                self._queues[self.party, other].put(None)


def agree_keys(links: Links) -> tuple[bytes, bytes]:
    """Return two fresh keys: one shared with the previous server, one with the next."""
    own = entropy.secret_key()
    links.send((links.party - 1) % 3, own)
    return own, bytes(links.receive((links.party + 1) % 3))


def run_in_threads(program: Callable[[Links], Result]) -> list[Result]:
    """Run a program at three servers, as threads of this process, and return the three results."""
    queues: dict[tuple[int, int], SimpleQueue[Buffer | None]]
    queues = {(a, b): SimpleQueue() for a in range(3) for b in range(3) if a != b}

    def run_party(party: int) -> Result:
        links = ThreadLinks(party, queues)
        try:
            return program(links)
        finally:
            links.close()

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(run_party, party) for party in range(3)]
    # A server stops if its neighbour stops: raise the first error that another server did not cause.
    errors = [error for future in waiting if (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, PartyError)):
        raise error
    return [future.result() for future in waiting]


BLOCK_BYTES = 1 << 20  # per message: fits the processor's cache, and sending starts early
MAX_PENDING_BLOCKS = 16  # messages sent before the first reply is read
Operation = Callable[..., Any]
Index = slice | EllipsisType


class KeyStream:
    """Pseudorandom words common to two servers with the same key: AES-256 in counter mode."""

    _zeros = bytes(BLOCK_BYTES)

    def __init__(self, key: bytes) -> None:
        # The counter may start at zero because a key serves one session only.
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def next_integers(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> RingArray:
        """Return the next words of the stream."""
        count = int(np.prod(shape)) * dtype.itemsize
        stream = bytearray(count + 16)  # update_into requires room for one more cipher block
        view = memoryview(stream)
        for start in range(0, count, BLOCK_BYTES):
            size = min(BLOCK_BYTES, count - start)
            self._cipher.update_into(memoryview(self._zeros)[:size], view[start : start + size + 16])
        return np.frombuffer(stream, dtype, int(np.prod(shape))).reshape(shape)


class ReplicatedEngine(Engine):
    """Engine of one server, on replicated shares.

    Secure against one semi-honest server. A server that deviates can add a value of its choice to a product unnoticed
    (an additive attack), and may then learn more than it should.

    Parameters
    ----------
    links
        Channels to the other two servers.
    keys
        Keys k_i and k_(i+1) of this server, for one session only. By default, fresh keys are agreed.
    ring, counted_bits
        As for `Engine`.
    openings
        Record of openings, if they must survive a crash.

    Examples
    --------
    >>> from veilwood_secure.mpc.replicated import run_in_threads
    >>> from veilwood_secure.mpc.shares import share
    >>> pairs = share([3, -4])
    >>> def program(links):
    ...     engine = ReplicatedEngine(links)
    ...     x = engine.load(pairs[links.party])
    ...     return engine.open(engine.mul(x, x))
    >>> run_in_threads(program)[0]
    array([ 9, 16])
    """

    def __init__(
        self,
        links: Links,
        keys: tuple[bytes, bytes] | None = None,
        ring: type[np.unsignedinteger[Any]] = np.uint32,
        counted_bits: int | None = None,
        openings: OpeningLog | None = None,
    ) -> None:
        super().__init__(links.party, ring, counted_bits)
        self._links, self._openings = links, openings
        self._streams = [KeyStream(key) for key in (keys or agree_keys(links))]
        self._previous, self._next = (self.party - 1) % 3, (self.party + 1) % 3
        self._public_at = {0: 0, 1: None, 2: 1}[self.party]  # public numbers are added to share 0

    # Secrets in and out

    def constant(self, values: ArrayLike) -> Shared:
        """Return public integers as a shared array."""
        words = as_ring_array(values, self.ring)
        zero = np.broadcast_to(np.zeros((), words.dtype), words.shape)
        return Shared([words if (self.party + at) % 3 == 0 else zero for at in range(2)], self._public_at)

    def load(self, parts: Sequence[RingArray]) -> Shared:
        """Return the shared array of which this server holds a pair."""
        first, second = (np.asarray(part) for part in parts)
        if first.shape != second.shape or {first.dtype, second.dtype} != {self.ring}:
            raise MechanismError(
                f"expected a pair of {self.ring} words of equal shapes, got {first.dtype} {first.shape} and "
                f"{second.dtype} {second.shape}. Hint: make it with veilwood_secure.mpc.shares.share."
            )
        return Shared([first, second], self._public_at)

    def refresh(self, x: Shared) -> Shared:
        """Return the same secrets in fresh shares."""
        return Shared(
            self._reshare_parts(x.shape, x.dtype, lambda at, out: np.copyto(out, x.parts[0][at])), x.public_at
        )

    def deal_sum(self, draw: Callable[[int], Ints], shape: tuple[int, ...]) -> Shared:
        """Return the shared sum of three arrays, one drawn by each server."""
        # Share j is stream k_j plus the message from server j-1 to server j: its draw minus stream k_(j-1).
        first, second = (stream.next_integers(shape, self.ring) for stream in self._streams)
        rest = as_ring_array(draw(self.party), self.ring).reshape(shape) - first
        self._send_array(self._next, rest)
        received = self._receive_array(self._previous, shape, self.ring)
        self.stats.rounds += 1
        return Shared([first + received, second + rest], self._public_at)

    def open(self, x: Shared) -> Ints:
        """Open the integers."""
        words = self._drop_slack(x)
        return self._reveal(words) if self._openings is None else self._openings.open(words, self._reveal)

    def _reveal(self, words: Shared) -> Ints:
        """Open integers without slack bits."""
        return arithmetic.to_signed(self._open_words(words, np.add)) >> self.slack_bits

    def is_all_zero(self, x: Shared) -> bool:
        """Return True if all secrets are zero: then the sum of two shares is minus the third."""
        first, second = self._drop_slack(x).parts
        return self._all_agree(-(first + second), second)

    def is_consistent(self, x: Shared) -> bool:
        """Return True if servers that hold the same share hold equal values."""
        return self._all_agree(x.parts[1], x.parts[0])

    # Products

    def mul(self, x: Shared, y: Shared) -> Shared:
        """Return the products of secrets."""
        return Shared(self._multiply_shared(x, y, np.multiply, np.add, np.subtract), self._public_at)

    def land(self, x: Bits, y: Bits) -> Bits:
        """Return the bitwise and of secret words."""
        return Bits(self._multiply_shared(x, y, np.bitwise_and, np.bitwise_xor, np.bitwise_xor), self._public_at)

    def matmul(self, x: Shared, y: Shared) -> Shared:
        """Return the matrix product."""
        return self._share_sums(arithmetic.sum_matrix_products(_cross_terms(x, y)))

    def dot(self, x: Shared, y: Shared, axis: int) -> Shared:
        """Return the products summed along an axis."""
        return self._share_sums(arithmetic.sum_products_along(_cross_terms(x, y), axis))

    def multiply_many(self, products: Sequence[Product]) -> list[Shared]:
        """Return several products: cross terms are summed locally and sent in one message."""
        if len(products) == 1:
            kind, x, y, axis = products[0]
            return [self.dot(x, y, axis) if kind == "dot" else getattr(self, kind)(x, y)]
        sums = [_local_product(product) for product in products]
        joined = self._share_sums(np.concatenate([part.ravel() for part in sums]))
        ends = np.cumsum([part.size for part in sums]).tolist()
        return [joined[end - part.size : end].reshape(*part.shape) for part, end in zip(sums, ends, strict=True)]

    # Random secrets

    def random_words(self, shape: tuple[int, ...], dtype: type[np.unsignedinteger[Any]] = np.uint64) -> Bits:
        """Return words of uniform secret bits without a message: pseudorandom secret sharing (PRSS)."""
        return Bits([stream.next_integers(shape, np.dtype(dtype)) for stream in self._streams], self._public_at)

    def toss_coins(self, count: int) -> Ints:
        """Return public random words. Coins are not results, so subclasses do not record them as openings."""
        return self._open_words(self.random_words((count,)), np.bitwise_xor).view(np.int64)

    def isolate_parts(self, x: Parts, kind: type[Kind]) -> list[Kind]:
        """Return a sharing of each of the three shares."""
        zero = np.broadcast_to(np.zeros((), x.dtype), x.shape)
        return [
            kind([part if (self.party + at) % 3 == index else zero for at, part in enumerate(x.parts)], x.public_at)
            for index in range(3)
        ]

    # Messages

    def _open_words(self, x: Parts, plus: Operation) -> RingArray:
        """Open words to all three servers: each gets its missing share from one server, and a digest from the other.

        Raise PartyError if share and digest differ: one of the two servers did not follow the protocol, but the third
        cannot determine which.
        """
        self._send_bytes(self._previous, _hash_array(x.parts[1]))
        self._send_array(self._next, x.parts[0])
        missing = self._receive_array(self._previous, x.shape, x.dtype)
        agrees = bytes(self._links.receive(self._next)) == _hash_array(missing)
        self.stats.rounds += 1
        if not agrees:
            raise PartyError(
                "two servers sent different copies of the same share. Hint: read the logs of all three servers."
            )
        return np.asarray(plus(plus(*x.parts), missing))

    def _multiply_shared(
        self, x: Parts, y: Parts, times: Operation, plus: Operation, minus: Operation
    ) -> list[RingArray]:
        """Return the pair of x*y: share i is x_i*y_i + x_i*y_(i+1) + x_(i+1)*y_i, masked, and is sent to server i-1."""
        if y.size > x.size:
            x, y = y, x  # the sum of y's shares is stored: let y be the smaller array
        shape = np.broadcast_shapes(x.shape, y.shape)
        x0, x1 = (np.broadcast_to(part, shape) for part in x.parts)
        y0, both = (np.broadcast_to(part, shape) for part in (y.parts[0], plus(*y.parts)))

        def fill_block(at: Index, out: RingArray) -> None:
            times(x0[at], both[at], out=out)
            plus(out, times(x1[at], y0[at]), out=out)

        self.stats.products += int(np.prod(shape))
        return self._reshare_parts(shape, x.dtype, fill_block, plus=plus, minus=minus)

    def _share_sums(self, sums: RingArray) -> Shared:
        """Reshare a sum of products, of which each server has one additive share."""
        self.stats.products += sums.size
        return Shared(self._reshare_parts(sums.shape, sums.dtype, None, into=sums), self._public_at)

    def _reshare_parts(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        fill: Callable[[Index, RingArray], None] | None,
        *,
        into: RingArray | None = None,
        plus: Operation = np.add,
        minus: Operation = np.subtract,
    ) -> list[RingArray]:
        """Reshare a secret from one additive share per server, computed by `fill` or given in `into`; return the pair.

        The share is sent to the previous server, masked by stream k_i minus stream k_(i+1). The masks of the three
        servers add up to zero. To the receiver, which lacks k_(i+1), each mask is uniform.
        """
        own = np.empty(shape, dtype) if into is None else into
        received = np.empty(shape, dtype)
        blocks = list(_iter_blocks(shape, dtype.itemsize))
        for number, at in enumerate(blocks):
            out = own[at]
            if fill is not None:
                fill(at, out)
            for stream, join in zip(self._streams, (plus, minus), strict=True):
                join(out, stream.next_integers(out.shape, dtype), out=out)
            self._send_array(self._previous, out)
            # Read replies while sending, so that only a few blocks are in flight.
            if number >= MAX_PENDING_BLOCKS:
                self._receive_into(received, blocks[number - MAX_PENDING_BLOCKS])
        for at in blocks[max(len(blocks) - MAX_PENDING_BLOCKS, 0) :]:
            self._receive_into(received, at)
        self.stats.rounds += 1
        return [own, received]

    def _all_agree(self, claim: RingArray, own: RingArray) -> bool:
        """Return True if every server's `own` has the same digest as the previous server's `claimed`."""
        self._send_bytes(self._next, _hash_array(claim))
        agrees = bytes(self._links.receive(self._previous)) == _hash_array(own)
        verdict = bytes([agrees])
        for other in (self._previous, self._next):
            self._send_bytes(other, verdict)
        # Receive both verdicts before deciding, so that all servers decide alike and none is left waiting.
        verdicts = [bytes(self._links.receive(other)) for other in (self._previous, self._next)]
        self.stats.rounds += 2
        return agrees and verdicts == [b"\1", b"\1"]

    def _send_array(self, to: int, words: RingArray) -> None:
        """Send words in their memory layout."""
        self._send_bytes(to, np.ascontiguousarray(words).reshape(-1).view(np.uint8).data)

    def _send_bytes(self, to: int, data: bytes | memoryview) -> None:
        """Send bytes and count them."""
        self.stats.bytes_sent += len(data)
        self._links.send(to, data)

    def _receive_into(self, words: RingArray, at: Index) -> None:
        """Fill one block with the next message from the next server."""
        words[at] = self._receive_array(self._next, words[at].shape, words.dtype)

    def _receive_array(self, sender: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> RingArray:
        """Return the words of the next message."""
        data = np.frombuffer(self._links.receive(sender), np.uint8)
        expected = int(np.prod(shape)) * dtype.itemsize
        if data.size != expected:  # the error message contains no length, which could reveal the number of rows
            raise PartyError(
                f"server {sender} sent a message of unexpected length. "
                "Hint: run the same version of the program on data of the same shape at all three servers.",
                party=f"server {sender}",
            )
        return data.view(dtype).reshape(shape)


def _iter_blocks(shape: tuple[int, ...], itemsize: int) -> Iterator[Index]:
    """Yield indices along the first axis that split an array into blocks of about BLOCK_BYTES."""
    if not shape:
        yield ...
        return
    step = max(BLOCK_BYTES // max(int(np.prod(shape[1:])) * itemsize, 1), 1)
    for start in range(0, shape[0], step):
        yield slice(start, start + step)


def _cross_terms(x: Shared, y: Shared) -> list[tuple[RingArray, RingArray]]:
    """Return the factors whose products sum to this server's additive share of a product: see `_multiply_shared`."""
    return [(x.parts[0], y.parts[0] + y.parts[1]), (x.parts[1], y.parts[0])]


def _local_product(product: Product) -> RingArray:
    """Return this server's additive share of a product."""
    terms = _cross_terms(product.x, product.y)
    if product.kind == "matmul":
        return arithmetic.sum_matrix_products(terms)
    if product.kind == "dot":
        return arithmetic.sum_products_along(terms, product.axis)
    (a, b), (c, d) = terms
    return np.asarray(a * b + c * d)


def _hash_array(words: RingArray) -> bytes:
    """Return a digest of words."""
    return hashlib.sha256(np.ascontiguousarray(words).reshape(-1).view(np.uint8).data).digest()
