# SPDX-License-Identifier: Apache-2.0
"""Owners, servers and users over real TLS: who is let in, what is refused and who is blamed, what is left on disk.

The three servers run as threads of the test process, each with its own folder, ports and connections; tests that
start and kill processes are in test_secure_faults.py.
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from fixtures.ports import free_ports
from veilwood.cli.main import main
from veilwood.data.encoding import Encoding
from veilwood.errors import ModelFileError, PartyError, VeilwoodError
from veilwood.papers.plain_id3 import PlainTree
from veilwood.privacy.ledger import SQLiteLedger
from veilwood.secure.mpc.plain import PlainEngine
from veilwood.secure.mpc.shares import reconstruct, share, to_bytes
from veilwood.secure.protocols.records import encode
from veilwood.secure.roles import programs as programs_module
from veilwood.secure.roles.calls import Call
from veilwood.secure.roles.client import Client
from veilwood.secure.roles.config import Address, Config, Task, set_up
from veilwood.secure.roles.identity import Authority, Identity, Name, peer_name, tls_context
from veilwood.secure.roles.programs import HiddenForest, PrivateVotes
from veilwood.secure.roles.server import Server
from veilwood.secure.roles.storage import Stored, Vault
from veilwood.secure.roles.transport import Channel, Listener, TlsLinks, dial
from veilwood.secure.roles.user import User

SCHEMA, X, Y = vw.datasets.balance_scale()
ROWS = {"north": slice(0, 250), "south": slice(250, None)}
TASK = Task(
    "scale", SCHEMA.to_dict(), "2", {"north": None, "south": None}, ("analyst", "guest"), settings={"max_depth": 2}
)


class Place:
    """Three servers of this process, and the folders of all roles."""

    def __init__(self, folder: Path, task: Task = TASK, timeout: float = 10.0) -> None:
        self.folder = folder
        ports = iter(free_ports(6))
        addresses = [Address("127.0.0.1", next(ports), next(ports)) for _ in range(3)]
        set_up(folder, task, addresses=addresses, timeout=timeout)
        self.servers: list[Server] = []

    def config(self, role: str) -> Config:
        return Config.load(self.folder / role)

    def start(self) -> None:
        self.servers = [Server(self.config(f"server-{party}")) for party in range(3)]
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        for server in self.servers:
            server.close()

    def client(self, name: str, task: str | None = None) -> Client:
        return Client(self.folder / f"client-{name}", task)

    def user(self, name: str = "analyst", task: str | None = None) -> User:
        return User(self.folder / f"user-{name}", task)

    def train(self) -> None:
        for owner, rows in ROWS.items():
            self.client(owner).contribute(X[rows], Y[rows])
        self.client("north").wait(60)

    def settle(self) -> None:
        """Wait until no server trains: an owner hears of a failure as soon as the first of them has settled it."""
        until = time.monotonic() + 60
        while any(study.training for server in self.servers for study in server._studies.values()):
            assert time.monotonic() < until
            time.sleep(0.01)

    def tree_in_the_open(self, task: str = "scale") -> PlainTree:
        """Put the three servers' shares together, which is what no two of them may do."""
        parts = [server._vault.load(task).arrays for server in self.servers]

        def joined(name: str) -> Any:
            return reconstruct([(part[f"first.{name}"], part[f"second.{name}"]) for part in parts])  # type: ignore[misc]

        splits = tuple(joined(f"0.{level}").argmax(axis=0) for level in range(2))
        width = programs_module.Domain.of(SCHEMA).width
        return PlainTree(splits, joined("0.leaves").argmax(axis=0), (width,) * len(SCHEMA.features))


@contextmanager
def place(folder: Path, task: Task = TASK, **options: Any) -> Iterator[Place]:
    here = Place(folder, task, **options)
    here.start()
    try:
        yield here
    finally:
        here.stop()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("trained")) as made:
        made.train()
        yield made


# -- the whole story -------------------------------------------------------------------------------------------


def test_answers_equal_the_plaintext_twin(trained: Place) -> None:
    tree, codes = trained.tree_in_the_open(), Encoding(SCHEMA, "bins").encode(X).astype(np.int64)
    expected = np.array(SCHEMA.classes, dtype=object)[tree.predict(codes)]
    with trained.user() as analyst:
        assert np.array_equal(analyst.predict(X), expected)
        assert np.array_equal(analyst.predict(X[:1]), expected[:1])  # a second question in the same session
        statement = analyst.privacy_
    assert statement.is_private
    assert statement.epsilon == 2
    assert statement.delta is not None
    assert 0 < statement.delta < 1e-12
    assert any("collude" in assumption for assumption in statement.assumptions)


def test_training_is_in_every_ledger_once(trained: Place) -> None:
    for server in trained.servers:
        (entry,) = server._ledger.entries()
        assert entry.state == "committed"
        assert entry.loss.epsilon == 2
        assert "secure training of scale" in entry.what


def test_several_users_and_a_second_training_at_once(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.train()
        second = replace(TASK, name="second", settings={"max_depth": 3})
        set_up(tmp_path, second)  # the servers keep running
        codes = Encoding(SCHEMA, "bins").encode(X).astype(np.int64)
        expected = np.array(SCHEMA.classes, dtype=object)[here.tree_in_the_open().predict(codes)]
        wrong: list[str] = []

        def ask(name: str) -> None:
            with here.user(name, "scale") as asking:
                for start in range(0, 625, 125):
                    if not np.array_equal(asking.predict(X[start : start + 125]), expected[start : start + 125]):
                        wrong.append(name)

        def contribute(owner: str) -> None:
            here.client(owner, "second").contribute(X[ROWS[owner]], Y[ROWS[owner]])

        jobs = [threading.Thread(target=ask, args=(name,)) for name in ("analyst", "guest", "analyst")]
        jobs += [threading.Thread(target=contribute, args=(owner,)) for owner in ROWS]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert here.client("south", "second").wait(60).epsilon == 2
        assert not wrong


def test_columns_of_the_same_rows(tmp_path: Path) -> None:
    names = list(SCHEMA.feature_names)
    owners = {"bank": [names[2], names[0]], "clinic": [names[1], names[3], SCHEMA.target.name]}
    task = replace(TASK, owners=owners)
    with place(tmp_path, task) as here:
        bank, clinic = here.client("bank"), here.client("clinic")
        assert bank.schema.feature_names == (names[0], names[2])
        assert not bank.holds_target
        bank.contribute(X[[names[0], names[2]]])
        with pytest.raises(PartyError, match="another number of rows than client bank") as caught:
            clinic.contribute(X[[names[1], names[3]]][1:], Y[1:])
        assert caught.value.party == "client clinic"
        clinic.contribute(X[[names[1], names[3]]], Y)
        assert clinic.wait(60).epsilon == 2
        with here.user() as analyst:
            assert set(analyst.predict(X)) <= set(SCHEMA.classes)


def test_columns_are_joined_in_the_order_of_the_schema() -> None:
    names = list(SCHEMA.feature_names)
    task = replace(TASK, owners={"bank": [names[2], names[0]], "clinic": [names[3], names[1], SCHEMA.target.name]})
    program, engine = HiddenForest(task), PlainEngine()
    parts = {
        "bank": program.encode_rows("bank", X[[names[0], names[2]]], None)[0],
        "clinic": program.encode_rows("clinic", X[[names[1], names[3]]], Y)[0],
    }
    shares = {owner: {key: engine.load((array,)) for key, array in part.items()} for owner, part in parts.items()}
    joined = program._joined(engine, shares)
    features, classes = encode(SCHEMA, X, Y)
    assert np.array_equal(engine.open(joined.features), features)
    assert np.array_equal(engine.open(joined.classes), classes)


def test_padding_hides_the_number_of_rows_and_counts_nowhere(here: Place) -> None:
    program = HiddenForest(TASK)
    plain, rows = program.encode_rows("north", X[:50], Y[:50])
    padded, shown = program.encode_rows("north", X[:50], Y[:50], pad_to=400)
    assert (rows, shown) == (50, 400)
    assert np.array_equal(padded["classes"].sum(axis=1), plain["classes"].sum(axis=1))
    with pytest.raises(VeilwoodError, match="cannot be padded to 49"):
        program.encode_rows("north", X[:50], Y[:50], pad_to=49)
    here.client("north").contribute(X[:50], Y[:50], pad_to=400)
    assert [server._studies["scale"].rows["north"][1] for server in here.servers] == [400] * 3


def test_a_public_forest_is_fitted_to_parties(here: Place) -> None:
    parameters = {"random_state": 0, "n_estimators": 4, "max_depth": 3}
    settings = {"estimator": "RandomTreesClassifier", "parameters": parameters}
    task = replace(TASK, name="public", protocol="public-forest", settings=settings)
    set_up(here.folder, task)
    for owner, rows in ROWS.items():
        here.client(owner, "public").contribute(X[rows], Y[rows])
    user = here.user("analyst", "public")
    with pytest.raises(VeilwoodError, match="plans another release"):
        vw.RandomTreesClassifier(SCHEMA, epsilon=2, random_state=1, n_estimators=5).fit(user.parties())
    forest = vw.RandomTreesClassifier(SCHEMA, epsilon=2, **parameters).fit(user.parties())
    assert forest.privacy_.epsilon == 2
    assert abs(forest.leaf_counts_.sum() - 4 * len(X)) < 500
    with pytest.raises(VeilwoodError, match="public"):
        user.predict(X)
    for server in here.servers:  # what was opened stays spent
        assert [entry.state for entry in server._ledger.entries()] == ["committed"]


def test_private_votes_cost_what_they_say(here: Place) -> None:
    settings = {"max_depth": 1, "n_trees": 5, "query_epsilon": "1/2"}
    task = replace(TASK, name="votes", epsilon="10", protocol="private-votes", settings=settings)
    set_up(here.folder, task)
    for owner, rows in ROWS.items():
        here.client(owner, "votes").contribute(X[rows], Y[rows])
    with here.user("analyst", "votes") as analyst:
        assert analyst.wait(60).epsilon == 10
        assert len(analyst.predict(X[:15])) == 15
        with pytest.raises(PartyError, match="insufficient privacy budget"):
            analyst.predict(X[:6])
        assert len(analyst.predict(X[:5])) == 5
    for server in here.servers:
        (book,) = server.config.folder.glob("answers-votes-*.db")
        entries = [(entry.state, entry.loss.epsilon) for entry in vw.open_ledger(book).entries()]
        assert [entry for entry in entries if entry[0] != "cancelled"] == [("committed", 7.5), ("committed", 2.5)]
        assert server._ledger.spent.epsilon == 10  # set aside as a whole when it was trained


def test_private_votes_refuse_questions_that_count_twice(here: Place) -> None:
    task = replace(TASK, name="votes", epsilon="10", protocol="private-votes", settings={"n_trees": 2, "max_depth": 1})
    set_up(here.folder, task)
    for owner, rows in ROWS.items():
        here.client(owner, "votes").contribute(X[rows], Y[rows])
    here.client("north", "votes").wait(60)
    features = PrivateVotes(task).encode_queries(X[:3])[0]["features"].astype(np.int64)
    with Call(here.config("user-analyst"), task, "ask") as call:
        call.hear("statement")
        call.go()
        call.say(rows=3)
        call.send_shares({"features": features * 1000}, np.uint32)
        with pytest.raises(PartyError, match="user analyst sent questions that are no rows of the schema"):
            call.receive()
    assert not any(list(server.config.folder.glob("answers-*.db")) for server in here.servers)


def test_the_law_of_private_votes() -> None:
    """The frequency of each class fits the exact law at range 2, and a range of 1 would break the promise."""
    settings = {"max_depth": 1, "n_trees": 1, "query_epsilon": "1"}
    program = PrivateVotes(replace(TASK, epsilon="10", protocol="private-votes", settings=settings))
    domain, engine, asked = program.domain, PlainEngine(), 20_000
    splits = np.zeros((domain.n_features, 1), np.int64)
    splits[0] = 1
    leaves = np.zeros((domain.n_classes, domain.width), np.int64)
    leaves[0] = 1  # the one tree votes for the first class; its neighbour for the second
    model = {"0.0": engine.load((splits,)), "0.leaves": engine.load((leaves,))}
    query = {"features": engine.load((np.repeat(program.encode_queries(X[:1])[0]["features"], asked, axis=2),))}
    counts = np.bincount(engine.open(program.answer(engine, model, query)), minlength=domain.n_classes)
    scale = 2.0
    q, far = np.exp(-1 / scale), np.arange(200)
    law, below = (1 - q) * q**far, 1 - q ** (far + 1)  # of the noise: P(z), P(at most z)
    # The first class wins ties, so it wins if no other noise exceeds its own by more than its vote.
    first = float(np.sum(law * (1 - q ** (far + 2)) ** (domain.n_classes - 1)))
    assert abs(counts[0] / asked - first) < 5 * np.sqrt(first * (1 - first) / asked)
    neighbour = float(np.sum(law[1:] * (1 - q ** far[1:]) * below[1:]))  # the vote is for the second class instead
    assert np.log(first / neighbour) <= 1
    sharper = np.exp(-1.0)
    law = (1 - sharper) * sharper**far
    first = float(np.sum(law * (1 - sharper ** (far + 2)) ** 2))
    neighbour = float(np.sum(law[1:] * (1 - sharper ** far[1:]) * (1 - sharper ** (far[1:] + 1))))
    assert np.log(first / neighbour) > 1


# -- who is let in ---------------------------------------------------------------------------------------------


def strangers(here: Place, tmp_path: Path) -> dict[str, tuple[str, Identity]]:
    """Identities that must be refused, with the ports they must be refused at."""
    secrets = here.folder / "secrets"
    read = {name: (secrets / f"authority-{name}.secret").read_bytes().strip() for name in ("servers", "people")}
    kept = here.folder / "authorities"
    servers = Authority.load(("server",), kept / "servers.pem", kept / "servers.key", read["servers"])
    people = Authority.load(("client", "user"), kept / "people.pem", kept / "people.key", read["people"])
    other = Authority.create(("server", "client", "user"))

    def issue(authority: Authority, role: Any, name: str, **options: Any) -> Identity:
        spot = tmp_path / f"stranger-{len(list(tmp_path.glob('stranger-*')))}"
        spot.mkdir()
        return authority.issue(Name(role, name), spot / "certificate.pem", spot / "key.pem", **options)

    return {
        "server of another authority": ("peers people", issue(other, "server", "0")),
        "client of another authority": ("peers people", issue(other, "client", "north")),
        "expired server": ("peers people", issue(servers, "server", "0", days=-1)),
        "expired client": ("peers people", issue(people, "client", "north", days=-1)),
        "client at the servers' port": ("peers", issue(people, "client", "north")),
        "server at the people's port": ("people", issue(servers, "server", "0")),
        "server that calls the wrong way": ("peers", issue(servers, "server", "2")),
        "client nobody named": ("people", issue(people, "client", "nobody")),
    }


def refused(port: int, context: ssl.SSLContext, name: Name) -> bool:
    """Whether a server says nothing to somebody who asks as a client, or as a server, would."""
    try:
        channel = dial("127.0.0.1", port, context, name, timeout=20, limit=1 << 16)
        words = {"do": "status", "task": "scale", "fingerprint": TASK.fingerprint(), "session": "s"}
        channel.say(**words, invites=False)
        channel.hear("phase")
    except PartyError as error:
        return "knows nothing of this session" not in str(error)  # which a server says to one it has let in
    return False


def test_strangers_are_refused_on_every_port(trained: Place, tmp_path: Path) -> None:
    for what, (ports, identity) in strangers(trained, tmp_path).items():
        for port in ports.split():
            for party in range(3):
                address = trained.config("server-0").servers[party]
                context = tls_context(identity, trained.config("server-0").servers_authority, listens=False)
                where, name = getattr(address, port), Name("server", str(party))
                assert refused(where, context, name), f"{what}: let in by server {party} at its {port} port"
    assert trained.client("north").status()[0]["phase"] == "trained"


def nothing_heard(context: ssl.SSLContext, plain: socket.socket) -> bool:
    try:
        secured = context.wrap_socket(plain)
        secured.send(b"hello")
        return not secured.recv(1)
    except (ssl.SSLError, ConnectionError):
        return True


def test_without_certificate_or_tls_nothing_is_said(trained: Place) -> None:
    address = trained.config("server-0").servers[1]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for port in (address.peers, address.people):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
            assert nothing_heard(context, plain)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionResetError):
                assert plain.recv(100)[:1] in (b"", b"\x15")  # closed, or a TLS alert


def test_old_tls_is_refused(trained: Place) -> None:
    config = trained.config("client-north")
    context = tls_context(config.identity, config.servers_authority, listens=False)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with pytest.raises(PartyError, match="is not server 0"):
        dial("127.0.0.1", config.servers[0].people, context, Name("server", "0"), timeout=5, limit=100)


def test_a_server_with_the_certificate_of_another_is_refused(trained: Place) -> None:
    config = trained.config("client-north")
    context = tls_context(config.identity, config.servers_authority, listens=False)
    with pytest.raises(PartyError, match="is not server 1") as caught:
        dial("127.0.0.1", config.servers[0].people, context, Name("server", "1"), timeout=5, limit=100)
    assert caught.value.party == "server 1"


def test_swapped_addresses_are_found_before_anything_is_sent(trained: Place) -> None:
    config = trained.config("client-north")
    swapped = replace(config, servers=(config.servers[1], config.servers[0], config.servers[2]))
    with pytest.raises(PartyError, match="is not server 0"):
        Client(swapped).contribute(X, Y)


def test_only_those_a_task_names_may_take_part(trained: Place) -> None:
    private = replace(TASK, name="private", users=("guest",), owners={"south": None})
    set_up(trained.folder, private)
    outsider = replace(trained.config("user-analyst"), tasks=(private,))
    with pytest.raises(PartyError, match="user analyst has no part in task 'private'"):
        User(outsider).predict(X[:1])
    with pytest.raises(PartyError, match="client north has no part"):
        first_word(trained.config("client-north"), private, "contribute", rows=3)


def test_a_server_serves_no_more_whom_its_operator_refuses(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.train()
        assert len(here.user("guest").predict(X[:1])) == 1
        replace(here.config("server-1"), refused=("user guest",)).save()
        with pytest.raises(PartyError, match="user guest has no part"):
            here.user("guest").predict(X[:1])
        assert len(here.user("analyst").predict(X[:1])) == 1


def first_word(config: Config, task: Task, do: str, **words: Any) -> None:
    """Ask for something and hear what the servers say to it."""
    with Call(config, task, do, **words) as call:
        call.hear("send")


def test_users_cannot_do_what_clients_do(trained: Place) -> None:
    config = trained.config("user-analyst")
    for do in ("contribute", "retire", "nonsense"):
        with pytest.raises(PartyError, match="user analyst may not do that"):
            first_word(config, TASK, do, rows=3)


def test_a_task_that_means_something_else_is_refused(trained: Place) -> None:
    cheaper = replace(TASK, epsilon="0.1")
    client = Client(replace(trained.config("client-north"), tasks=(cheaper,)))
    with pytest.raises(PartyError, match="is another one at server"):
        client.contribute(X, Y)


def test_an_authority_signs_its_own_roles_only(tmp_path: Path) -> None:
    people = Authority.create(("client", "user"))
    with pytest.raises(VeilwoodError, match="does not sign for a server"):
        people.issue(Name("server", "0"), tmp_path / "c", tmp_path / "k")
    for role, name in (("server", "3"), ("client", "UPPER"), ("user", "a.b"), ("client", "")):
        with pytest.raises(VeilwoodError):
            Name(role, name)  # type: ignore[arg-type]


# -- owners that send nonsense ---------------------------------------------------------------------------------


def send_arrays(here: Place, arrays: dict[str, Any], rows: int, spoil: Any = None) -> None:
    """Contribute arrays as client north, whatever they hold; ``spoil`` changes the pair of one server."""
    with Call(here.config("client-north"), TASK, "contribute", rows=rows) as call:
        call.hear("send")
        for array in arrays.values():
            pairs = share(array)
            for party, channel in enumerate(call.channels):
                pair = spoil(party, pairs[party]) if spoil else pairs[party]
                channel.send(to_bytes(pair))
        call.hear("received")
        call.go()
        call.hear("accepted")


def test_bad_rows_are_refused_and_the_owner_named(here: Place) -> None:
    good, rows = HiddenForest(TASK).encode_rows("north", X[:20], Y[:20])
    two = {key: array.astype(np.int64) for key, array in good.items()}
    two["features"][0, :, 3] = 1
    negative = {key: array.astype(np.int64) for key, array in good.items()}
    negative["features"][0, :, 3] = [2, -1, 0, 0, 0]
    classes = {key: array.astype(np.int64) for key, array in good.items()}
    classes["classes"][:, 5] = 1
    short = {"features": good["features"][:, :4], "classes": good["classes"]}
    for arrays, why in (
        (two, "features that are not one-hot"),
        (negative, "features that are not one-hot"),
        (classes, "classes that are not one-hot"),
        (short, "wrong width"),
    ):
        with pytest.raises(PartyError, match=f"client north .*{why}") as caught:
            send_arrays(here, arrays, rows)
        assert caught.value.party == "client north"
    with pytest.raises(PartyError, match="client north sent shares that do not fit together"):
        send_arrays(here, good, rows, lambda party, pair: (pair[0] + 1, pair[1]) if party == 1 else pair)
    assert all(server._studies["scale"].rows == {} for server in here.servers)
    here.train()  # and those who keep to the protocol are served


@pytest.mark.parametrize("rows", [0, -1, 1.5, "many", None, True, 1 << 40])
def test_numbers_of_rows_that_are_none(trained: Place, rows: Any) -> None:
    with pytest.raises(PartyError, match="is no number of rows"):
        first_word(trained.config("client-north"), TASK, "contribute", rows=rows)


def test_more_rows_than_a_server_takes_are_refused_unread(trained: Place) -> None:
    with pytest.raises(PartyError, match="more rows than this server takes"):
        first_word(trained.config("client-north"), TASK, "contribute", rows=1 << 30)


def test_an_owner_that_tells_servers_different_things_is_blamed(here: Place) -> None:
    config = here.config("client-north")
    with Call(config, TASK, "status") as call:  # to borrow its connections
        call.hear("phase")
        call.say(more=False)
    good, rows = HiddenForest(TASK).encode_rows("north", X[:20], Y[:20])
    fewer, _ = HiddenForest(TASK).encode_rows("north", X[:19], Y[:19])
    context = tls_context(config.identity, config.servers_authority, listens=False)
    channels = []
    for party, address in enumerate(config.servers):
        name = Name("server", str(party))
        channel = dial(address.host, address.people, context, name, timeout=10, limit=1 << 20)
        count, arrays = (rows, good) if party else (rows - 1, fewer)
        channel.say(do="contribute", task="scale", fingerprint=TASK.fingerprint(), session="cheat", rows=count)
        channel.hear("send")
        for array in arrays.values():
            channel.send(to_bytes(share(array)[party]))
        channel.hear("received")
        channels.append(channel)
    channels[0].say(go=True)
    for channel in channels:
        with pytest.raises(PartyError, match="different facts about") as caught:
            channel.hear("accepted")
        assert caught.value.party == "client north"


def test_an_owner_may_replace_its_rows_until_training_begins(here: Place) -> None:
    north = here.client("north")
    north.contribute(X[:10], Y[:10])
    north.contribute(X[:30], Y[:30])
    assert [server._studies["scale"].rows["north"][1] for server in here.servers] == [30, 30, 30]
    assert north.status()[0]["missing"] == ["south"]


# -- sessions --------------------------------------------------------------------------------------------------


def test_a_model_survives_a_restart_and_ends_by_retirement(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.train()
        with here.user() as analyst:
            before = analyst.predict(X)
        with pytest.raises(PartyError, match="trained already"):
            here.client("north").contribute(X, Y)
        here.stop()
        here.start()
        analyst = here.user()
        assert np.array_equal(analyst.predict(X), before)
        here.client("south").retire()
        with pytest.raises(PartyError, match=r"retired|no model"):
            analyst.predict(X)
        assert not list(tmp_path.glob("server-*/models/*"))
        assert here.client("north").status()[0]["phase"] == "waiting"
        here.train()  # a new training, charged anew
        assert here.servers[0]._ledger.spent.epsilon == 4


def test_a_model_that_one_server_lost_is_answered_by_none_and_trained_anew(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.train()
        here.stop()
        (tmp_path / "server-1" / "models" / "scale.share").unlink()
        here.start()
        with pytest.raises(PartyError, match="no model 'scale' at server 1"):
            here.user().predict(X[:1])
        here.train()
        with here.user() as analyst:
            assert len(analyst.predict(X[:5])) == 5


def test_a_failing_server_ends_the_training_everywhere(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = here.servers[2]._study("scale", TASK.fingerprint()).program
    monkeypatch.setattr(failing, "train", lambda engine, rows: 1 / 0)
    with pytest.raises(VeilwoodError, match="was not trained") as caught:
        here.train()
    assert "Hint: contribute again" in str(caught.value)
    here.settle()
    for server in here.servers:
        study = server._studies["scale"]
        assert study.model is None
        assert not study.rows
        assert not server._vault.names()
        assert [entry.state for entry in server._ledger.entries()] == ["cancelled"]  # nothing was opened
    assert "server 2" in str(here.servers[0]._studies["scale"].failure)
    monkeypatch.undo()
    here.train()


def test_a_budget_that_one_server_lacks_stops_all(tmp_path: Path) -> None:
    made = Place(tmp_path)
    SQLiteLedger(tmp_path / "server-1" / "ledger.db", epsilon=1)
    made.start()
    with pytest.raises(VeilwoodError, match="insufficient privacy budget"):
        made.train()
    made.settle()
    made.stop()
    for server in made.servers:
        assert server._ledger.spent.epsilon == 0


def test_a_user_that_tells_servers_different_things_is_blamed(trained: Place) -> None:
    with Call(trained.config("user-analyst"), TASK, "ask") as call:
        call.hear("statement")
        call.go()
        for party, channel in enumerate(call.channels):
            channel.say(rows=3 if party else 4)
        arrays = [HiddenForest(TASK).encode_queries(X[: 3 if party else 4])[0]["features"] for party in range(3)]
        for party, channel in enumerate(call.channels):
            channel.hear("send")
            channel.send(to_bytes(share(arrays[party])[party]))
        for channel in call.channels:
            with pytest.raises(PartyError, match="user analyst differs") as caught:
                channel.receive()
            assert caught.value.party == "user analyst"


def test_a_user_that_speaks_to_two_servers_only_is_blamed(tmp_path: Path) -> None:
    with place(tmp_path, timeout=4.0) as here:
        here.train()
        patient = replace(here.config("user-analyst"), timeout=60.0)  # so that it is not the first to give up
        with Call(patient, TASK, "ask") as call:
            call.hear("statement")
            call.go()
            features = HiddenForest(TASK).encode_queries(X[:3])[0]["features"]
            for party, channel in list(enumerate(call.channels))[:2]:
                channel.say(rows=3)
                channel.hear("send")
                channel.send(to_bytes(share(features)[party]))
            with pytest.raises(PartyError, match="user analyst is too slow"):
                call.channels[2].receive()


# -- transport -------------------------------------------------------------------------------------------------


@contextmanager
def two_ends(folder: Path, timeout: float = 5.0) -> Iterator[tuple[Channel, Channel]]:
    """A connection of server 0 and server 1, from both ends."""
    made = Place(folder) if not (folder / "server-0").exists() else None
    del made
    configs = [Config.load(folder / f"server-{party}") for party in range(2)]
    arrived: list[Channel] = []
    there = threading.Event()

    def take(channel: Channel) -> None:
        arrived.append(channel)
        there.set()

    listens = tls_context(configs[1].identity, configs[1].servers_authority, listens=True)
    listener = Listener("127.0.0.1", 0, listens, timeout, take)
    dials = tls_context(configs[0].identity, configs[0].servers_authority, listens=False)
    near = dial("127.0.0.1", listener.port, dials, Name("server", "1"), timeout=timeout, limit=1 << 24)
    assert there.wait(10)
    yield near, arrived[0]
    near.close()
    arrived[0].close()
    listener.close()


def test_messages_arrive_whole_and_in_order(tmp_path: Path) -> None:
    with two_ends(tmp_path) as (near, far):
        assert far.peer == Name("server", "0")
        far.limit = 1 << 24
        parts = [b"", b"x", bytes(100_000), b"last"]
        for part in parts:
            near.send(part)
        assert [bytes(far.receive()) for _ in parts] == parts
        near.say(a=1)
        assert far.hear("a") == {"a": 1}


def test_two_parties_that_both_send_much_do_not_wait_for_ever(tmp_path: Path) -> None:
    with two_ends(tmp_path) as (near, far):
        far.limit = 1 << 24
        much = bytes(1 << 24)
        other = threading.Thread(target=lambda: (far.send(much), far.receive()))
        other.start()
        near.send(much)
        assert near.receive() == much
        other.join()


def test_messages_beyond_the_limit_are_refused_unread(tmp_path: Path) -> None:
    with two_ends(tmp_path) as (near, far):
        far.limit = 1000
        near._post(0, bytes(1001))
        near._write()
        with pytest.raises(PartyError, match="announced a message longer than is allowed") as caught:
            far.receive()
        assert caught.value.party == "server 0"


@pytest.mark.parametrize(
    "raw", [b"\x07" + bytes(12), b"\x00" + b"\x00\x00\x00\x09" + bytes(8)], ids=["unknown kind", "wrong number"]
)
def test_frames_out_of_place_are_refused(tmp_path: Path, raw: bytes) -> None:
    with two_ends(tmp_path) as (near, far):
        near._socket.send(raw)
        with pytest.raises(PartyError, match="server 0 does not keep to the protocol"):
            far.receive()


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[1]", b'{"b": 1}', b"not json"])
def test_words_that_are_none_are_refused(tmp_path: Path, text: bytes) -> None:
    with two_ends(tmp_path) as (near, far):
        near.send(text)
        with pytest.raises(PartyError, match="a message with a was expected"):
            far.hear("a")


def test_the_lost_and_the_slow_are_named(tmp_path: Path) -> None:
    with two_ends(tmp_path, timeout=0.2) as (near, far):
        with pytest.raises(PartyError, match="server 0 is too slow"):
            far.receive()
        near.fail(VeilwoodError("budget is gone"))
        with pytest.raises(PartyError, match="server 0 gave up: budget is gone"):
            far.receive()
    with two_ends(tmp_path) as (near, far):
        near.close()
        with pytest.raises(PartyError, match="server 0 is lost"):
            far.receive()


def test_the_server_at_the_end_of_the_chain_is_blamed(tmp_path: Path) -> None:
    """Server 0 waits for 1, which waits for 2, which says nothing: both name 2."""
    with two_ends(tmp_path, 0.5) as a, two_ends(tmp_path, 0.5) as b, two_ends(tmp_path, 0.5) as c:
        ends = {(0, 1): a[0], (1, 0): a[1], (1, 2): b[0], (2, 1): b[1], (0, 2): c[0], (2, 0): c[1]}
        for (_, other), channel in ends.items():
            channel.peer = Name("server", str(other))
        links = [TlsLinks(p, {o: ends[p, o] for o in range(3) if o != p}) for p in range(3)]
        blamed: dict[int, str | None] = {}

        def wait(party: int, sender: int) -> None:
            try:
                links[party].receive(sender)
            except PartyError as error:
                blamed[party] = error.party

        threads = [threading.Thread(target=wait, args=pair) for pair in ((0, 1), (1, 2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert blamed == {0: "server 2", 1: "server 2"}


def test_certificates_name_one_role(tmp_path: Path) -> None:
    class Fake:
        def __init__(self, *names: str) -> None:
            self.names = names

        def getpeercert(self) -> dict[str, Any]:
            return {"subjectAltName": [("DNS", name) for name in self.names]}

    assert peer_name(Fake("north.client.veilwood")) == Name("client", "north")  # type: ignore[arg-type]
    for names in ((), ("north.client.veilwood", "0.server.veilwood"), ("north.client.example",), ("0.king.veilwood",)):
        with pytest.raises(PartyError):
            peer_name(Fake(*names))  # type: ignore[arg-type]


# -- what lies on disk -----------------------------------------------------------------------------------------


def test_stored_shares_open_with_the_secret_only(tmp_path: Path) -> None:
    vault = Vault(tmp_path, b"secret", "server 0")
    array = np.arange(1000, dtype=np.uint32)
    vault.save("m", Stored({"entry": 1}, {"a": array}))
    assert np.array_equal(Vault(tmp_path, b"secret", "server 0").load("m").arrays["a"], array)
    data = (tmp_path / "m.share").read_bytes()
    assert array.tobytes()[:64] not in data
    assert b"entry" not in data
    for other in (Vault(tmp_path, b"guess", "server 0"), Vault(tmp_path, b"secret", "server 1")):
        with pytest.raises(ModelFileError, match="does not open"):
            other.load("m")
    (tmp_path / "other.share").write_bytes(data)
    with pytest.raises(ModelFileError, match="does not open"):
        vault.load("other")
    (tmp_path / "m.share").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ModelFileError, match="does not open"):
        vault.load("m")
    (tmp_path / ".m.share.1234.part").write_bytes(data)
    assert Vault(tmp_path, b"secret", "server 0").names() == ["m", "other"]
    assert not list(tmp_path.glob(".*"))


def assert_nothing_in_clear(folder: Path) -> None:
    """Every key is encrypted, every file is private, and no stored share is readable."""
    for key in [*folder.rglob("key.pem"), *folder.rglob("authorities/*.key")]:
        assert key.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
        assert key.stat().st_mode & 0o077 == 0
    for secret in folder.rglob("*.secret"):
        assert secret.parent.name == "secrets"
        assert secret.stat().st_mode & 0o077 == 0
    for model in folder.rglob("models/*"):
        assert model.read_bytes().startswith(b"VWSHARE1")
    secrets = [path.read_bytes().strip() for path in folder.rglob("*.secret")]
    for path in folder.rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            data = path.read_bytes()
            assert b"BEGIN PRIVATE KEY" not in data
            assert b"BEGIN EC PRIVATE KEY" not in data
            assert not any(secret in data for secret in secrets)


def test_no_key_or_share_is_on_disk_in_clear(trained: Place) -> None:
    assert_nothing_in_clear(trained.folder)
    first = trained.servers[0]._studies["scale"].model
    assert first is not None
    for path in trained.folder.rglob("*"):
        if path.is_file():
            assert all(array.tobytes()[:32] not in path.read_bytes() for array in first.arrays.values())


def test_a_wrong_or_missing_secret_opens_nothing(trained: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILWOOD_SECRET", "guess")
    with pytest.raises(VeilwoodError, match="is this the secret"):
        trained.client("north").status()
    monkeypatch.delenv("VEILWOOD_SECRET")
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    gone = replace(trained.config("client-north"), secret="../secrets/gone")
    with pytest.raises(VeilwoodError, match="VEILWOOD_SECRET"):
        Client(gone).status()
    secret = (trained.folder / "secrets" / "client-north.secret").read_text().strip()
    monkeypatch.setenv("VEILWOOD_SECRET", secret)
    assert Client(gone).status()[0]["phase"] == "trained"


def test_logs_hold_no_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), place(tmp_path) as here:
        here.train()
        with here.user() as analyst:
            analyst.predict(X[:7])
    assert "scale: trained" in caplog.text
    assert not any(f" {label} " in caplog.text for label in SCHEMA.classes)
    assert not any(name in caplog.text for name in SCHEMA.feature_names)


# -- configurations and the command line -----------------------------------------------------------------------


def test_configurations_are_read_as_written(tmp_path: Path) -> None:
    made = set_up(tmp_path, TASK, addresses=[Address("host", 1, 2)] * 3, listen=["0.0.0.0"] * 3)
    assert [str(config.who) for config in made] == [
        "server 0", "server 1", "server 2", "client north", "client south", "user analyst", "user guest",
    ]  # fmt: skip
    for config in made:
        again = Config.load(config.folder)
        assert (again.role, again.name, again.servers, again.tasks) == (
            config.role, config.name, config.servers, config.tasks,
        )  # fmt: skip
    with pytest.raises(VeilwoodError, match="has a task 'scale' already"):
        set_up(tmp_path, TASK, addresses=[Address("host", 1, 2)] * 3)
    keys = {path: path.read_bytes() for path in tmp_path.rglob("key.pem")}
    set_up(tmp_path, replace(TASK, name="more", users=("analyst", "late")), addresses=[Address("other", 3, 4)] * 3)
    assert all(path.read_bytes() == key for path, key in keys.items())
    late = Config.load(tmp_path / "user-late")
    assert [task.name for task in late.tasks] == ["more"]
    assert late.servers == made[0].servers  # where they are was said once


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": "0"}, "must be above 0"),
        ({"epsilon": "lots"}, "is not a finite number"),
        ({"owners": {}}, "has no owners"),
        ({"schema": SCHEMA.to_dict() | {"inferred": True}}, "unreviewed draft"),
        ({"owners": {"north": None, "Süd": None}}, "is no name"),
        ({"owners": {"a": ["left_weight"], "b": None}}, "every column to exactly one owner"),
    ],
)
def test_tasks_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(VeilwoodError, match=message):
        replace(TASK, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": "magic"}, "there is no protocol 'magic'"),
        ({"settings": {"depth": 2}}, "unknown setting 'depth'"),
        ({"protocol": "public-forest", "settings": {"estimator": "Oak"}}, "cannot be trained jointly"),
    ],
)
def test_programs_that_do_not_exist_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(VeilwoodError, match=message):
        programs_module.program_of(replace(TASK, **change))


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
        assert main(["secure", "client", "roles/client-north", "north.csv", "--no-wait"]) == 0
        assert main(["secure", "client", "roles/client-north"]) == 0
        assert "server 2: waiting for south" in capsys.readouterr().out
        assert main(["secure", "client", "roles/client-south", "south.csv", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["epsilon"] == 2
        assert main(["secure", "user", "roles/user-analyst", "questions.csv", "-o", "answers.csv"]) == 0
        assert len(Path("answers.csv").read_text().splitlines()) == 10
        assert main(["secure", "user", "roles/user-analyst", "questions.csv", "--json"]) == 0
        printed = capsys.readouterr().out
        assert len(json.loads(printed[printed.index("{") :])["labels"]) == 9
        assert main(["secure", "client", "roles/client-north", "--retire"]) == 0
        assert main(["secure", "user", "roles/user-analyst", "questions.csv"]) == 2
        assert "no model" in capsys.readouterr().err
        assert main(["secure", "server", "roles/client-north"]) == 2
        assert "Hint: give the folder of a server" in capsys.readouterr().err
    finally:
        for server in servers:
            server.close()


# -- the documentation -----------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "secure.md").read_text(encoding="utf-8")


def test_the_documentation_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("heart.json").write_text(json.dumps(SCHEMA.to_dict()))
    (line,) = re.findall(r"^```sh\n(.*?)\n```$", DOCS, flags=re.M | re.S)
    assert main(shlex.split(line)[1:]) == 0
    assert {path.name for path in Path("clinics").iterdir()} == {
        "authorities", "secrets", "server-0", "server-1", "server-2", "client-north", "client-south", "user-analyst",
    }  # fmt: skip
    assert {path.name for path in Path("clinics/server-0").iterdir()} == {
        "config.json", "certificate.pem", "key.pem", "servers.pem", "people.pem",
    }  # fmt: skip
    rows = re.findall(r"^\| `([a-z][\w-]+)`", DOCS, flags=re.M)
    assert set(rows) == set(programs_module.PROTOCOLS)
    for path in re.findall(r"\]\(([^)]+)\)", DOCS):
        assert (ROOT / "docs" / path).resolve().exists(), path
    for command in re.findall(r"^veilwood (secure \w+)", DOCS, flags=re.M):
        assert main([*command.split(), "--help"]) == 0
    capsys.readouterr()
    for option in set(re.findall(r"`(--[\w-]+)", DOCS)) - {"--epsilon"}:
        for command in ("setup", "client"):
            main(["secure", command, "--help"])
        assert option in capsys.readouterr().out, option
