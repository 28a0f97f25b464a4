# SPDX-License-Identifier: Apache-2.0
"""Private set intersection: owners of different columns find their common rows.

Ids become points of a group (ristretto255). Every owner raises its own points and the other owners' points to a secret
exponent. Points that all owners have raised are equal if their ids are equal, and reveal nothing else about an id
(Meadows 1986; Huberman, Franklin and Hogg 1999). Owners exchange files; the servers take no part
(proofs/secure-alignment.md).
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from veilwood.arrays import Ints
from veilwood.errors import PartyError, SetupError, UnreadableError, UseError
from veilwood.safe_io import read_json
from veilwood_secure.mpc.replicated import KeyStream

_POINT_BYTES: Final = 32


@dataclass(frozen=True)
class BlindedIds:
    """Ids of one owner as points of a group, with the owners that have raised the points to their secret exponents.

    Attributes
    ----------
    owner : str
        Owner of the ids.
    session : str
        Fingerprint of the task and name of the alignment: points of another session do not match.
    blinded_by : tuple of str
        Owners that have raised the points to their secret exponents.
    points : tuple of bytes
        Points, in an order that only ``owner`` knows.
    """

    owner: str
    session: str
    blinded_by: tuple[str, ...]
    points: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Serialise as JSON."""
        fields = {"owner": self.owner, "session": self.session, "blinded_by": self.blinded_by}
        return json.dumps({**fields, "points": [point.hex() for point in self.points]}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the output of ``to_bytes``; raise UnreadableError if a point is not in the group."""
        group = _load_group()
        try:
            fields: dict[str, Any] = read_json(data)
            points = tuple(bytes.fromhex(point) for point in fields["points"])
            found = cls(str(fields["owner"]), str(fields["session"]), tuple(map(str, fields["blinded_by"])), points)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UnreadableError("this is not a file of blinded ids. Hint: run veilwood secure align-start.") from None
        valid = group.crypto_core_ristretto255_is_valid_point
        if not all(len(point) == _POINT_BYTES and any(point) and valid(point) for point in points):
            raise UnreadableError(f"the blinded ids of {found.owner} contain a value that is not a point of the group.")
        return found


class Alignment:
    """One owner's side of a private set intersection.

    Parameters
    ----------
    owner : str
        Name of the owner.
    owners : sequence of str
        All owners of the task.
    session : str
        Fingerprint of the task and name of the alignment. Use a name only once: it determines the secret exponent.
    secret : bytes
        The owner's secret.

    Notes
    -----
    Guarantee

    To another owner that follows the protocol, an owner reveals only which of that owner's ids it has, and the number
    of its own ids, padding included (proofs/secure-alignment.md, attacked by
    packages/veilwood-secure/tests/roles/test_alignment.py).
    """

    def __init__(self, owner: str, owners: Sequence[str], session: str, secret: bytes) -> None:
        self.owner, self.owners, self.session, self._group = owner, tuple(owners), session, _load_group()
        if owner not in self.owners or len(self.owners) < 2:
            raise UseError(f"{owner} has no other owner to align rows with. Hint: name at least two owners of columns.")
        self._power = self._group.crypto_core_ristretto255_scalar_reduce(
            hmac.new(secret, f"alignment {session}".encode(), hashlib.sha512).digest()
        )
        self._order_key = hmac.new(secret, f"alignment order {session}".encode(), hashlib.sha256).digest()

    def start(self, ids: Sequence[Any], pad_to: int | None = None) -> BlindedIds:
        """Return this owner's ids as points, padded to a public number with points that match nothing."""
        texts = [str(each).strip() for each in ids]
        if any(count > 1 for count in Counter(texts).values()):
            raise UseError("an id occurs more than once. Hint: align one row per id.")
        if pad_to is not None and pad_to < len(texts):
            raise UseError(f"{len(texts)} ids cannot be padded to {pad_to}. Hint: choose a larger public number.")
        points = [self._raise_point(self._hash_to_point(text)) for text in texts]
        points += [self._group.crypto_core_ristretto255_random() for _ in range((pad_to or len(texts)) - len(texts))]
        order = self._secret_order(len(points))
        return BlindedIds(self.owner, self.session, (self.owner,), tuple(points[at] for at in order))

    def blind(self, others: BlindedIds) -> BlindedIds:
        """Raise another owner's points to this owner's secret exponent, without changing their order."""
        if others.session != self.session or others.owner not in self.owners or self.owner in others.blinded_by:
            raise PartyError(
                f"these ids of {others.owner} are of another alignment, or were blinded here already. "
                "Hint: use the same name of the alignment at all owners.",
                party=f"owner {others.owner}",
            )
        points = tuple(self._raise_point(point) for point in others.points)
        return replace(others, blinded_by=(*others.blinded_by, self.owner), points=points)

    def finish(self, lists: Sequence[BlindedIds], n_ids: int) -> Ints:
        """Return the indices of this owner's rows that all owners have, in an order common to all owners.

        Parameters
        ----------
        lists : sequence of BlindedIds
            The ids of every owner, blinded by all of them.
        n_ids : int
            Number of this owner's ids.
        """
        named = {each.owner: each for each in lists}
        for each in lists:
            if each.session != self.session or sorted(each.blinded_by) != sorted(self.owners):
                raise UseError(f"the ids of {each.owner} are not blinded by all owners. Hint: see align-blind.")
        if sorted(named) != sorted(self.owners):
            raise UseError(f"ids of {', '.join(sorted(set(self.owners) - set(named)))} are missing.")
        common = set(named[self.owner].points)
        for each in lists:
            common &= set(each.points)
        order = self._secret_order(len(named[self.owner].points))
        place_of = dict(zip(named[self.owner].points, order, strict=True))
        found = np.array([place_of[point] for point in sorted(common)], np.int64)
        if len(found) and found.max() >= n_ids:
            raise PartyError("padding was matched: an owner did not follow the protocol. Hint: use a new name.")
        return found

    def _hash_to_point(self, text: str) -> bytes:
        digest = hashlib.sha512(f"veilwood alignment {self.session}\0{text}".encode()).digest()
        return bytes(self._group.crypto_core_ristretto255_from_hash(digest))

    def _raise_point(self, point: bytes) -> bytes:
        return bytes(self._group.crypto_scalarmult_ristretto255(self._power, point))

    def _secret_order(self, count: int) -> list[int]:
        """Return this owner's secret order of its points."""
        keys = KeyStream(self._order_key).next_integers((count,), np.dtype(np.uint64))
        return [int(place) for place in np.argsort(keys, kind="stable")]


def _load_group() -> Any:
    """Return the module with the group operations; raise SetupError if it is not installed."""
    try:
        return importlib.import_module("rbcl")
    except ModuleNotFoundError:
        raise SetupError("finding common rows needs a package that is not installed. Hint: pip install rbcl") from None
