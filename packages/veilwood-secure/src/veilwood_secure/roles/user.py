# SPDX-License-Identifier: Apache-2.0
"""User of a trained model: secret-shares its queries with the servers and reconstructs the answers.

No server sees a query or an answer. The program of the task defines the servers' computation.
"""

from __future__ import annotations

import base64
import os
from contextlib import suppress
from typing import Any, Self

import numpy as np

from veilwood.arrays import AnyArray, Ints
from veilwood.data.encoding import class_labels
from veilwood.errors import PartyError, PlanError, UseError
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.plan import Plan
from veilwood_secure.mpc.shares import find_majority, pair_from_bytes, reconstruct
from veilwood_secure.protocols.joint_forest import Parties, joint_plan
from veilwood_secure.roles import receipts
from veilwood_secure.roles.config import Config
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.identity import is_signed
from veilwood_secure.roles.joint_programs import JointForest
from veilwood_secure.roles.owner import ServerConnections, wait_until_trained
from veilwood_secure.roles.program import program_for_task
from veilwood_secure.roles.public_programs import PublicTrees


class User:
    """User of a trained model, which may be public or stay in shares at the three servers.

    The first prediction opens a session with the servers, which later predictions reuse. ``close``, or leaving the
    ``with`` block, ends the session.

    Parameters
    ----------
    config, task
        As in ``Owner``: the configuration of this user or its folder, and the name of the task.

    Attributes
    ----------
    receipts : list of Receipt
        Signed statements of the servers: three for each batch of answers, with its shares, or for a public model.
    """

    def __init__(self, config: Config | str | os.PathLike[str], task: str | None = None) -> None:
        self.config = Config.load_for_role("user", config)
        self.task = self.config.find_task(task)
        self._program = program_for_task(self.task)
        self._connections: ServerConnections | None = None
        self._model: Any = None
        self.receipts: list[receipts.Receipt] = []

    def wait(self, seconds: float | None = None) -> PrivacyCertificate:
        """Wait until the model is trained; return its certificate."""
        return wait_until_trained(self.config, self._program, seconds)

    @property
    def privacy_(self) -> PrivacyCertificate:
        """Certificate of the model, which all three servers confirm."""
        return self.wait(0)

    def predict(self, X: Any) -> AnyArray:
        """Return the predicted class or number of each row. Only this process sees rows and answers.

        Parameters
        ----------
        X : dataframe or array
            Rows with the feature columns of the schema.
        """
        if not isinstance(self._program, HiddenForest):
            return np.asarray(self.model().predict(X))
        arrays, rows = self._program.encode_queries(X)
        if self._connections is not None:
            try:
                return self._query_servers(self._connections, arrays, rows)
            except PartyError:  # the session has ended: retry, unless queries are charged
                self.close()
                if self._program.query_loss(rows) is not None:
                    raise
        self._connections = self._open_session()
        try:
            return self._query_servers(self._connections, arrays, rows)
        except BaseException:
            self.close()
            raise

    def model(self) -> Any:
        """Return the fitted estimator or trees of a task with a public model. Predictions spend no budget."""
        if self._model is None:
            if isinstance(self._program, JointForest):
                planned = self._program.estimator
                self._model = type(planned)(**planned.get_params(deep=False)).fit(self.parties())
            elif isinstance(self._program, PublicTrees):
                self._model = self._program.read_model(self._fetch_released())
            else:
                raise UseError(f"the model of task {self.task.name!r} is hidden. Hint: query it with predict.")
        return self._model

    def parties(self) -> Parties:
        """Return the input of ``fit``: ``PrivateForestClassifier(...).fit(user.parties())``."""
        if not isinstance(self._program, JointForest):
            raise UseError(f"the model of task {self.task.name!r} is hidden. Hint: query it with predict.")
        return _ReleasedParties(self, self._program)

    def _fetch_released(self) -> Ints:
        """Return the released values on which at least two servers agree."""
        self.wait()
        with ServerConnections(self.config, self.task, "fetch") as call:
            fields = call.receive_fields("statement", "training", "released", "signatures")
            messages = [bytes(data) for data in call.receive_all()]
        opened, training = receipts.hash_messages([find_majority(messages)]), str(fields[0]["training"])
        self.receipts += receipts.check_training(
            fields[0]["signatures"], training, opened, self.config.servers_authority.read_bytes()
        )
        return np.frombuffer(find_majority(messages), "<i8").astype(np.int64)

    def _open_session(self) -> ServerConnections:
        call = ServerConnections(self.config, self.task, "ask")
        try:
            fields = call.receive_fields("statement", "training")
            self._program.verify_certificates([server["statement"] for server in fields])
            call.training = str(fields[0]["training"])
            call.start()
        except BaseException:
            call.close()
            raise
        return call

    def _query_servers(self, call: ServerConnections, arrays: Any, rows: int) -> AnyArray:
        call.send_fields(rows=rows)
        sent = call.send_shares(arrays, self._program.ring)
        messages = [bytes(data) for data in call.receive_all()]
        signatures = [str(fields["signature"]) for fields in call.receive_fields("signature")]
        found = []
        for party, channel in enumerate(call.channels):
            facts = receipts.answer_facts(party, call.training, call.session, call.number, sent[party], messages[party])
            if not is_signed(channel.certificate_der, receipts.statement_text("answer", facts), signatures[party]):
                raise PartyError(f"server {party} has not signed its answer.", party=f"server {party}")
            shares = tuple(base64.b64encode(data).decode() for data in (*sent[party], messages[party]))
            certificate = receipts.to_hex(channel.certificate_der)
            found.append(receipts.Receipt("answer", facts, signatures[party], certificate, shares))
        call.number += 1
        self.receipts += found
        pairs = [pair_from_bytes(data, (rows,), self._program.answer_ring) for data in messages]
        return class_labels(self.task.public_schema)[reconstruct(pairs)]

    def close(self) -> None:
        """End the session with the servers."""
        if self._connections is not None:
            call, self._connections = self._connections, None
            with suppress(PartyError):
                call.send_fields(rows=0)
            call.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _ReleasedParties(Parties):
    """Owners and servers of a finished task, as input of ``fit``."""

    def __init__(self, user: User, program: JointForest) -> None:
        super().__init__(program.noise_protocol)
        self._user, self._program = user, program

    def release(self, estimator: Any, plan: Plan) -> Ints:
        """Return the released values. Raise PlanError if the estimator is not the one of the task."""
        if joint_plan(estimator, self.resolve_noise_protocol(estimator)) != self._program.plan:
            raise PlanError(
                f"the plan of the estimator differs from the plan of task {self._user.task.name!r}. Hint: pass the "
                "parameters of the task."
            )
        return self._user._fetch_released()
