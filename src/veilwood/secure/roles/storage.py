# SPDX-License-Identifier: Apache-2.0
"""A server's part of trained models on disk: encrypted and authenticated under the operator's secret.

What a model is made of is decided in ``programs``; rows of owners, until they are trained on, are in ``checkpoints``.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from numpy.typing import NDArray
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as write_arrays

from veilwood.atomic_file import write_file
from veilwood.bounded import read_json
from veilwood.errors import ModelFileError

__all__ = ["Stored", "Vault"]

_MAGIC: Final = b"VWSHARE1"
_SALT, _NONCE = 16, 12


@dataclass(frozen=True)
class Stored:
    """One server's part of a model: public facts, and arrays that are uniformly random by themselves."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


class Vault:
    """A folder of encrypted models.

    Parameters
    ----------
    folder, secret, owner
        As of ``checkpoints.Safe``, but that each file has a salt of its own.

    Examples
    --------
    >>> import tempfile
    >>> vault = Vault(Path(tempfile.mkdtemp()), b"secret", "server 0")
    >>> vault.save("flowers", Stored({"rounds": 3}, {"leaves": np.arange(4)}))
    >>> vault.names(), vault.load("flowers").facts
    (['flowers'], {'rounds': 3})
    """

    def __init__(self, folder: Path, secret: bytes, owner: str) -> None:
        self._folder, self._secret, self._owner = folder, secret, owner
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(".*.part"):  # of a write that a crash cut short: encrypted, and of no use
            left_over.unlink()

    def names(self) -> list[str]:
        """Which models are stored."""
        return sorted(path.stem for path in self._folder.glob("[!.]*.share"))

    def save(self, name: str, model: Stored) -> None:
        """Write a model so that a crash leaves the old file or the new one, and nothing in clear."""
        facts = np.frombuffer(json.dumps(dict(model.facts)).encode(), np.uint8)
        plain = write_arrays(
            {"facts": facts} | {f"array.{key}": np.ascontiguousarray(a) for key, a in model.arrays.items()}
        )
        salt, nonce = secrets.token_bytes(_SALT), secrets.token_bytes(_NONCE)
        sealed = self._cipher(salt).encrypt(nonce, plain, self._about(name))
        write_file(self._path(name), _MAGIC + salt + nonce + sealed)
        self._sync()

    def load(self, name: str) -> Stored:
        """Read a model, refusing a file that was altered, swapped or written under another secret."""
        data = self._path(name).read_bytes()
        start = len(_MAGIC) + _SALT
        salt, nonce, sealed = data[len(_MAGIC) : start], data[start : start + _NONCE], data[start + _NONCE :]
        try:
            if not data.startswith(_MAGIC):
                raise InvalidTag
            arrays = parse_arrays(self._cipher(salt).decrypt(nonce, sealed, self._about(name)))
        except InvalidTag:
            raise ModelFileError(
                f"the stored part of model {name!r} does not open: altered, of another server, or another secret. "
                "Hint: restore the file, or delete it and train again."
            ) from None
        facts = read_json(arrays.pop("facts").tobytes())
        return Stored(facts, {key.removeprefix("array."): array for key, array in arrays.items()})

    def delete(self, name: str) -> None:
        """Forget a model."""
        self._path(name).unlink(missing_ok=True)
        self._sync()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.share"

    def _about(self, name: str) -> bytes:
        return f"{self._owner}/{name}".encode()

    def _cipher(self, salt: bytes) -> AESGCM:
        return AESGCM(Scrypt(salt=salt, length=32, n=1 << 14, r=8, p=1).derive(self._secret))

    def _sync(self) -> None:
        """Make names survive a power failure, as contents do."""
        if os.name == "posix":
            folder = os.open(self._folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
