# SPDX-License-Identifier: Apache-2.0
"""Records of the service: added once, changed and removed by what matches, all or nothing."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from sqlalchemy.exc import IntegrityError

from veilwood_service import store
from veilwood_service.settings import Settings
from veilwood_service.store import Store


@pytest.fixture
def records(tmp_path: Path) -> Store:
    made = Store(Settings(tmp_path))
    made.create_tables()
    return made


def dataset(name: str, people: str) -> dict[str, str]:
    return {"name": name, "people": people, "account": "anna", "created": store.current_timestamp()}


def test_a_record_is_added_once_and_changed_and_removed_where_it_matches(records: Store) -> None:
    assert records.add(store.datasets, **dataset("cars", "makers"))
    assert not records.add(store.datasets, **dataset("cars", "others"))
    assert records.add(store.datasets, **dataset("visits", "patients"))
    assert {found["people"] for found in records.find_all(store.datasets)} == {"makers", "patients"}
    assert records.update(store.datasets, {"name": "cars"}, people="drivers") == 1
    assert records.find(store.datasets, name="cars", people="makers") is None
    assert (records.find(store.datasets, name="cars") or {})["people"] == "drivers"
    assert records.remove(store.datasets, name="cars") == 1
    assert [found["name"] for found in records.find_all(store.datasets)] == ["visits"]


def test_a_transaction_that_fails_half_way_leaves_nothing(records: Store) -> None:
    def add_twice() -> None:
        with records.transaction() as connection:
            for _ in range(2):
                connection.execute(store.datasets.insert().values(**dataset("cars", "makers")))

    with pytest.raises(IntegrityError):
        add_twice()
    assert records.find_all(store.datasets) == []


def test_the_file_is_its_owners_alone(records: Store, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "service.db").stat().st_mode) == 0o600


def test_ids_are_never_the_same() -> None:
    assert len({store.new_id() for _ in range(1000)}) == 1000
