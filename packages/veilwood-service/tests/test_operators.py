# SPDX-License-Identifier: Apache-2.0
"""An operator with docs/service.md and a shell: its blocks as they stand, from nothing to a restored service."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from veilwood_testing import ROOT
from veilwood_testing.processes import free_ports
from veilwood_testing.running_service import PASSWORD, VISITS, VISITS_SCHEMA, settings_for_store

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs" / "service.md").read_text()


def blocks(heading: str) -> list[str]:
    """Return the commands of one section, block by block."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```bash\n(.*?)```", section, re.DOTALL)


@dataclass
class Shell:
    """A shell in one folder. Words of the page are replaced by the places of this test."""

    folder: Path
    replaced: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, commands: str, **more: str) -> str:
        for word, put in self.replaced.items():
            commands = commands.replace(word, put)
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": programs, "VEILWOOD_PASSWORD": PASSWORD, **self.environment, **more}
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", commands + "\nenv > .env"],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (commands, done.stdout, done.stderr)
        lines = (self.folder / ".env").read_text().splitlines()
        self.environment |= dict(line.split("=", 1) for line in lines if line.startswith("VEILWOOD_"))
        return done.stdout


@contextmanager
def started(folder: str, port: int, database: str, place: Path) -> Iterator[str]:
    """Start a service as the page says; yield the link that it prints, if it does."""
    command = [sys.executable, "-m", "veilwood", "serve", folder, "--port", str(port)]
    environment = {**os.environ, "VEILWOOD_DATABASE": database}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=place, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Veilwood at ")
        try:
            yield "" if list(place.glob("monday.*")) else process.stdout.readline().partition(": ")[2].strip()
        finally:
            process.terminate()


@pytest.mark.parametrize("kind", ["SQLite", "PostgreSQL"])
def test_the_page_leads_from_nothing_to_a_restored_service(tmp_path: Path, kind: str) -> None:
    (tmp_path / "reviewed.json").write_text(json.dumps(VISITS_SCHEMA.to_dict()))
    VISITS.to_csv(tmp_path / "visits.csv", index=False)
    for name, part in {"new": VISITS[:3], "questions": VISITS[3:5]}.items():
        part.drop(columns="ill").to_csv(tmp_path / f"{name}.csv", index=False)
    port, folder = free_ports(1)[0], str(tmp_path / "srv")
    replaced = {
        "http://127.0.0.1:8400": f"http://127.0.0.1:{port}",
        "veilwood schema review visits.json": "cp reviewed.json visits.json",  # a conversation
        "/srv/veilwood": folder,
        "/backups": str(tmp_path),
    }
    with settings_for_store(kind, tmp_path / "srv") as settings:
        database = settings.database.replace("/postgres?", "/veilwood?")
        restored = database.replace("/veilwood?", "/veilwood_new?")
        if database:
            subprocess.run(["psql", "-q", settings.database, "-c", "CREATE DATABASE veilwood"], check=True)
            replaced = {
                "postgresql://veilwood@host/veilwood_new": restored,
                "postgresql://veilwood@host/veilwood": database,
                "-h host": f"-h {database.partition('?host=')[2]}",
                **replaced,
            }
        operator, custodian, analyst = (Shell(tmp_path, replaced) for _ in range(3))
        invite, register, plan, sign, run = blocks("From a shell")
        with started(folder, port, database, tmp_path) as link:
            links = operator.run(invite, LINK=link).splitlines()
            for shell, name, sent in zip((custodian, analyst), ("carla", "ana"), links[1:], strict=True):
                shell.environment["VEILWOOD_SERVICE"] = operator.environment["VEILWOOD_SERVICE"]
                shell.run('veilwood remote accept "$LINK"', LINK=sent, VEILWOOD_ACCOUNT=name)
            custodian.run(register)
            analyst.run(plan)
            assert "epsilon=0.5" in custodian.run(sign)
            printed = analyst.run(run)
            assert all(word in printed for word in ("predictions", "answered_before", "labels", "evaluate"))
            assert '"spent": "epsilon=0.75"' in custodian.run("veilwood remote ledger visits")

        back_up = blocks("Backup and restore")[1 if database else 0]
        assert ("pg_dump" in back_up) == bool(database)
        operator.run(back_up)
        subprocess.run(
            ["bash", "-c", "jq .certificate model.json | tee june.json > july.json"], cwd=tmp_path, check=True
        )
        with started(f"{folder}-new", port, restored, tmp_path):
            charge_and_thaw = blocks("Backup and restore")[2]
            custodian.run(register.splitlines()[1] + "\n" + charge_and_thaw, VEILWOOD_TOKEN="")
            analyst.run(plan.splitlines()[1], VEILWOOD_TOKEN="")
            printed = analyst.run(
                "veilwood remote run $(jq -r .id plan.json)\nveilwood remote predict $(jq -r .id model.json) new.csv"
            )
            assert "predictions" in printed
            assert '"spent": "epsilon=1.25"' in custodian.run("veilwood remote ledger visits")
            assert re.fullmatch(r"visits: [0-9a-f]{64}\n", operator.run("veilwood service verify /srv/veilwood-new"))
