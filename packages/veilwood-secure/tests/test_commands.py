# SPDX-License-Identifier: Apache-2.0
"""The command line of all roles, and the documentation of secure training, which is true."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from veilwood.cli.main import main
from veilwood_secure.roles import program as programs_module
from veilwood_secure.roles.config import Config
from veilwood_secure.roles.server import Server
from veilwood_testing.processes import free_ports
from veilwood_testing.secure_roles import SCHEMA, X, Y


def test_the_command_line_from_setup_to_retirement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    SCHEMA.save("scale.json")
    table = X.assign(**{SCHEMA.target.name: Y})
    table[:300].to_csv("north.csv", index=False)
    table[300:].to_csv("south.csv", index=False)
    X[:9].to_csv("questions.csv", index=False)
    port = str(free_ports(6)[0])
    words = "secure setup roles --schema scale.json --epsilon 2 --owner north --owner south --user analyst"
    assert main([*words.split(), "--name", "scale", "--port", port, "--param", "max_depth=2"]) == 0
    servers = [Server(Config.load(f"roles/server-{party}")) for party in range(3)]
    for server in servers:
        server.start()
    try:
        assert main(["secure", "owner", "roles/owner-north", "north.csv", "--no-wait"]) == 0
        assert main(["secure", "owner", "roles/owner-north"]) == 0
        assert "server 2: waiting for south" in capsys.readouterr().out
        assert main(["secure", "owner", "roles/owner-south", "south.csv", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["epsilon"] == 2
        assert main(["secure", "user", "roles/user-analyst", "questions.csv", "-o", "answers.csv"]) == 0
        assert len(Path("answers.csv").read_text().splitlines()) == 10
        assert main(["secure", "user", "roles/user-analyst", "questions.csv", "--json"]) == 0
        printed = capsys.readouterr().out
        assert len(json.loads(printed[printed.index("{") :])["labels"]) == 9
        assert main(["secure", "owner", "roles/owner-north", "--retire"]) == 0
        assert main(["secure", "user", "roles/user-analyst", "questions.csv"]) == 2
        assert "no model" in capsys.readouterr().err
        assert main(["secure", "server", "roles/owner-north"]) == 2
        assert "Hint: pass the folder of a server" in capsys.readouterr().err
    finally:
        for server in servers:
            server.close()


ROOT = Path(__file__).parents[3]

OWNERS, EXPLANATION = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("owners.md", "secure.md"))
DOCS = OWNERS + EXPLANATION


def test_the_documentation_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("heart.json").write_text(json.dumps(SCHEMA.to_dict()))
    (line,) = re.findall(r"^```sh\n(.*?)\n```$", DOCS, flags=re.M | re.S)
    assert main(shlex.split(line)[1:]) == 0
    assert {path.name for path in Path("clinics").iterdir()} == {
        "authorities", "secrets", "server-0", "server-1", "server-2", "owner-north", "owner-south", "user-analyst",
    }  # fmt: skip
    assert {path.name for path in Path("clinics/server-0").iterdir()} == {
        "config.json", "tasks.json", "certificate.pem", "key.pem", "servers.pem", "participants.pem", "budgets",
    }  # fmt: skip
    rows = re.findall(r"^\| `([a-z][\w-]+)`", DOCS, flags=re.M)
    assert set(rows) == {*programs_module.PROTOCOLS, "mpc-id3", "odp-id3"}  # two of the reproductions
    for path in re.findall(r"\]\(([^)]+)\)", DOCS):
        assert (ROOT / "docs" / path.partition("#")[0]).resolve().exists(), path
    for command in re.findall(r"^veilwood (secure [\w-]+)", DOCS, flags=re.M):
        assert main([*command.split(), "--help"]) == 0
    capsys.readouterr()
    for option in set(re.findall(r"`(--[\w-]+)", DOCS)) - {"--epsilon"}:
        for command in ("setup", "owner", "server", "user"):
            main(["secure", command, "--help"])
        assert option in capsys.readouterr().out, option


@pytest.mark.parametrize(
    ("settings", "servers"),
    [([], "checked"), (["servers=honest"], "honest"), (["leaves=exponential"], "honest")],
)
def test_servers_of_a_new_task_check_one_another_where_they_can(
    settings: list[str], servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SCHEMA.save(tmp_path / "scale.json")
    words = ["secure", "setup", str(tmp_path / "roles"), "--schema", str(tmp_path / "scale.json"), "--no-keys"]
    parties = ["--owner", "north", "--user", "analyst", "--protocol", "cdp-id3"]
    assert main([*words, *parties, *(word for setting in settings for word in ("-p", setting))]) == 0
    printed = capsys.readouterr().out
    assert f"servers={servers}" in printed
    assert ("cannot compute" in printed) is (settings == ["leaves=exponential"])
    task = Config.load(tmp_path / "roles" / "server-0").tasks[0]
    assert programs_module.program_for_task(task).is_checked is (servers == "checked")


def test_the_names_beside_the_words_of_the_field_exist() -> None:
    table = DOCS.partition("| term | name in Veilwood |")[2].partition("\n\n")[0]
    names = {
        name.rpartition(".")[2]
        for line in table.splitlines()[2:]
        for name in re.findall(r"`([\w.]+)`", line.split("|")[2])
    }
    source = "\n".join(path.read_text() for path in (ROOT / "packages/veilwood-secure/src").rglob("*.py"))
    assert len(names) > 15
    assert [name for name in names if not re.search(rf"(def|class) {name}\b", source)] == []
