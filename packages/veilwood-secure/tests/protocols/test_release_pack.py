# SPDX-License-Identifier: Apache-2.0
"""Models of several owners can be packed: the documents name the servers, and there are no measurements to show."""

from __future__ import annotations

from pathlib import Path

import pytest

import veilwood as vw
from veilwood.privacy import signature
from veilwood.release_pack.pack import verify_pack, write_pack
from veilwood_testing.parties import CAR, OWNERS, Threads
from veilwood_testing.release_packs import card_text


@pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning")
def test_a_jointly_trained_model_can_be_packed(tmp_path: Path) -> None:
    ledger = vw.SQLiteLedger(tmp_path / "joint.db", epsilon=3)
    forest = vw.RandomTreesClassifier(CAR.schema, n_estimators=4, max_depth=3, random_state=0, ledger=ledger)
    vw.save(forest.fit(Threads(OWNERS, "dealt")), tmp_path / "joint.veilwood")
    (tmp_path / "card.toml").write_text(card_text())
    signature.generate_key_pair(tmp_path / "clinic.key")
    write_pack(
        tmp_path / "joint.veilwood", tmp_path / "pack", ledger=ledger, key=tmp_path / "clinic.key",
        card=tmp_path / "card.toml",
    )  # fmt: skip
    assert all(check.holds for check in verify_pack(tmp_path / "pack", tmp_path / "clinic.key.pub"))
    assert 'model_name: "Federated"' in (tmp_path / "pack" / "registry.yaml").read_text()
    assert not (tmp_path / "pack" / "measurements.parquet").exists()
