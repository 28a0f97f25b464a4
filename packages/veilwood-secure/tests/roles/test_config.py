# SPDX-License-Identifier: Apache-2.0
"""Configurations are read as they were written, and tasks that make no sense are refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from veilwood.cli.main import main
from veilwood.errors import SetupError, UseError, VeilwoodError
from veilwood_secure.roles.config import CONFIG_FILE, TASKS_FILE, Address, Config, set_up_roles
from veilwood_secure.roles.local import _free_ports
from veilwood_secure.roles.program import program_for_task
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
    with pytest.raises(VeilwoodError, match="already has a task 'scale'"):
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


def test_a_task_that_is_added_undoes_no_revocation(tmp_path: Path) -> None:
    set_up_roles(tmp_path, TASK, addresses=[Address("127.0.0.1", 1, 2)] * 3)
    replace(Config.load(tmp_path / "server-0"), refused=("user analyst",), timeout=7.0).save()
    own = (tmp_path / "server-0" / CONFIG_FILE).read_bytes()
    set_up_roles(tmp_path, replace(TASK, name="another"))
    assert (tmp_path / "server-0" / CONFIG_FILE).read_bytes() == own
    found = Config.load(tmp_path / "server-0")
    assert (found.refused, found.timeout) == (("user analyst",), 7.0)
    assert [task.name for task in found.tasks] == [TASK.name, "another"]


def test_a_configuration_is_in_two_files(tmp_path: Path) -> None:
    set_up_roles(tmp_path, TASK, addresses=[Address("127.0.0.1", 1, 2)] * 3)
    own, shared = (tmp_path / "server-0" / name for name in (CONFIG_FILE, TASKS_FILE))
    assert set(json.loads(shared.read_text())) == {"servers", "tasks"}
    assert not {"servers", "tasks"} & set(json.loads(own.read_text()))
    own.write_text(json.dumps({**json.loads(own.read_text()), "tasks": []}))
    with pytest.raises(SetupError):
        Config.load(tmp_path / "server-0")
    shared.unlink()
    with pytest.raises(SetupError):
        Config.load(tmp_path / "server-0")


@pytest.mark.parametrize(
    ("role", "of"), [("server-0", "server-1"), ("owner-north", "owner-south"), ("owner-north", "user-analyst")]
)
def test_the_certificate_of_another_role_is_refused_at_the_start(tmp_path: Path, role: str, of: str) -> None:
    set_up_roles(tmp_path, TASK, addresses=[Address("127.0.0.1", 1, 2)] * 3)
    kind = role.partition("-")[0]
    assert Config.load_for_role(kind, tmp_path / role).name
    for name in ("certificate.pem", "key.pem"):
        shutil.copy(tmp_path / of / name, tmp_path / role / name)
    with pytest.raises(SetupError):
        Config.load_for_role(kind, tmp_path / role)
    (tmp_path / role / "certificate.pem").write_text("nothing")
    with pytest.raises(SetupError):
        Config.load_for_role(kind, tmp_path / role)


def test_one_owner_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(TASK.schema))
    schema = str(tmp_path / "schema.json")
    arguments = ["secure", "setup", str(tmp_path / "roles"), "--schema", schema, "--user", "analyst"]
    assert main([*arguments, "--owner", "north", "--owner", "north"]) == 2
    assert not (tmp_path / "roles").exists()
    assert main([*arguments, "--owner", "north", "--owner", "south"]) == 0


def test_the_papers_even_split_of_epsilon_is_beside_ours() -> None:
    budgets = {}
    for budget in ("growing", "even"):
        task = replace(TASK, protocol="cdp-id3", settings={"max_depth": 3, "budget": budget})
        budgets[budget] = [step.loss.epsilon for step in program_for_task(task).plan.steps]
        assert sum(budgets[budget]) == 2  # type: ignore[arg-type]
    assert budgets["even"] == [Fraction(1, 2)] * 4
    assert budgets["growing"] != budgets["even"]
    with pytest.raises(UseError):
        program_for_task(replace(TASK, protocol="cdp-id3", settings={"budget": "generous"}))
