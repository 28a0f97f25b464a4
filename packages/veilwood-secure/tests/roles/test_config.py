# SPDX-License-Identifier: Apache-2.0
"""Configurations are read as they were written, and tasks that make no sense are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from veilwood.errors import VeilwoodError
from veilwood_secure.roles.config import Address, Config, set_up_roles
from veilwood_secure.roles.local import _free_ports
from veilwood_testing.secure_roles import SCHEMA, TASK


def test_configurations_are_read_as_written(tmp_path: Path) -> None:
    made = set_up_roles(tmp_path, TASK, addresses=[Address("host", 1, 2)] * 3, listen=["0.0.0.0"] * 3)
    assert [str(config.party_name) for config in made] == [
        "server 0", "server 1", "server 2", "owner north", "owner south", "user analyst", "user guest",
    ]  # fmt: skip
    for config in made:
        again = Config.load(config.folder)
        assert (again.role, again.name, again.servers, again.tasks) == (
            config.role, config.name, config.servers, config.tasks,
        )  # fmt: skip
    with pytest.raises(VeilwoodError, match="has a task 'scale' already"):
        set_up_roles(tmp_path, TASK, addresses=[Address("host", 1, 2)] * 3)
    keys = {path: path.read_bytes() for path in tmp_path.rglob("key.pem")}
    set_up_roles(
        tmp_path, replace(TASK, name="more", users=("analyst", "late")), addresses=[Address("other", 3, 4)] * 3
    )
    assert all(path.read_bytes() == key for path, key in keys.items())
    late = Config.load(tmp_path / "user-late")
    assert [task.name for task in late.tasks] == ["more"]
    assert late.servers == made[0].servers  # where they are was said once


def test_whom_a_server_refuses_is_read_as_tools_write_it_and_never_as_nobody(tmp_path: Path) -> None:
    digest = "0123456789abcdef" * 4
    written = ":".join(digest.upper()[at : at + 2] for at in range(0, 64, 2))  # openssl x509 -fingerprint
    config = set_up_roles(tmp_path, TASK, addresses=[Address("host", 1, 2)] * 3)[0]
    replace(config, refused=(digest, written, f"{digest}  -", "user analyst")).save()
    assert Config.load(config.folder).refused == (digest, digest, digest, "user analyst")
    for nobody in ("analyst", "users analyst", digest[1:], "user Analyst", ""):
        replace(config, refused=(nobody,)).save()
        with pytest.raises(VeilwoodError, match=r"neither a role and name|is not a name"):
            Config.load(config.folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": "0"}, "must be above 0"),
        ({"epsilon": "lots"}, "is not a finite number"),
        ({"owners": {}}, "has no owners"),
        ({"schema": SCHEMA.to_dict() | {"inferred": True}}, "unreviewed draft"),
        ({"owners": {"north": None, "Süd": None}}, "is not a name"),
        ({"owners": {"a": ["left_weight"], "b": None}}, "every column to exactly one owner"),
    ],
)
def test_tasks_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(VeilwoodError, match=message):
        replace(TASK, **change)


def test_servers_of_this_machine_listen_where_no_outgoing_connection_can_come_first() -> None:
    ports = _free_ports(6)
    assert len(set(ports)) == 6
    assert all(1024 < port < 32_768 for port in ports)
