# SPDX-License-Identifier: Apache-2.0
"""Tables that are named instead of uploaded: from a database on the operator's list, and from no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
import psycopg

from veilwood.errors import ParameterError
from veilwood_service.routes_data import copy_database_table, resolve_source
from veilwood_service.settings import Limits, Settings
from veilwood_testing.processes import running_postgres
from veilwood_testing.running_service import CAR, TABLE, Running, serving

HOST = "postgresql://reader@127.0.0.1:1/clinic"


@pytest.mark.parametrize(
    "source",
    [
        "postgresql://other@127.0.0.1:1/clinic#visits",
        f"{HOST}?sslmode=disable#visits",
        f"{HOST}2#visits",
        HOST,
        f"{HOST}#",
        f"{HOST}#a b",
        f'{HOST}#v"; DROP TABLE x; --',
        f"{HOST}#a.b.c",
        "postgres://elsewhere/db#t",
    ],
)
def test_only_databases_on_the_list_are_read(tmp_path: Path, source: str) -> None:
    with pytest.raises(ParameterError, match=r"allows|names no table"):
        resolve_source(Settings(tmp_path, allowed=(HOST,)), "visits", source)


def test_a_database_that_is_away_tells_nothing(tmp_path: Path) -> None:
    settings = Settings(tmp_path, allowed=("postgresql://reader:secret@127.0.0.1:1/clinic",))
    settings.make_folders()
    with pytest.raises(ParameterError, match="cannot be read") as refused:
        copy_database_table(settings, "visits", "postgresql://reader:secret@127.0.0.1:1/clinic#visits")
    assert "secret" not in str(refused.value)


def ask(running: Running, name: str, source: str) -> Any:
    asked = {"name": name, "people": "makers of cars", "epsilon": 1, "source": source}
    return running.ask("custodian", "POST", "/v1/datasets", json=asked)


@pytest.mark.slow
def test_a_table_is_copied_from_a_database(tmp_path: Path) -> None:
    with running_postgres() as address:
        columns = list(TABLE)
        with psycopg.connect(address) as connection:
            connection.execute(f"CREATE TABLE cars ({', '.join(f'{name} TEXT' for name in columns)})")
            with connection.cursor() as cursor, cursor.copy("COPY cars FROM STDIN") as copy:
                for row in TABLE.itertuples(index=False):
                    copy.write_row(row)
        with serving(tmp_path, allowed=(address,)) as running:
            assert ask(running, "cars", f"{address}#public.cars").status_code == 201
            assert ask(running, "none", f"{address}#missing").status_code == 422
            copied = tmp_path / "tables" / "cars.csv"
            assert copied.read_text() == TABLE.to_csv(index=False)
            assert copied.stat().st_mode & 0o077 == 0
            schema = CAR.schema.to_dict()
            assert running.ask("custodian", "PUT", "/v1/datasets/cars/schema", json=schema).is_success
            running.trained(epsilon=0.5)
            again = ask(running, "cars", f"{address}#cars")
            assert (again.status_code, "taken" in again.text) == (422, True)
        with serving(tmp_path / "small", allowed=(address,), limits=Limits(upload_bytes=1000)) as running:
            assert ask(running, "cars", f"{address}#cars").status_code == 422
            assert list((tmp_path / "small" / "tables").iterdir()) == []
