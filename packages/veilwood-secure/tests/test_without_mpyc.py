# SPDX-License-Identifier: Apache-2.0
"""Secure training needs no MPyC: only the links that reproduce the papers do, and they say so."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "mpyc":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""
TRAINING = """
import veilwood as vw
from veilwood_secure.mpc.replicated import run_in_threads
from veilwood_secure.mpc.replicated import ReplicatedEngine
from veilwood_secure.mpc.shares import share
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.program import program_for_task

for name in vw.secure.__all__:
    getattr(vw.secure, name)
schema, X, y = vw.datasets.balance_scale()
program = program_for_task(Task("t", schema.to_dict(), "2", {"north": None}, ("u",), settings={"max_depth": 1}))
arrays, _ = program.encode_rows("north", X, y)
pairs = {key: share(array) for key, array in arrays.items()}

def serve(links):
    engine = ReplicatedEngine(links, ring=program.ring)
    rows = {"north": {key: engine.load(pair[links.party]) for key, pair in pairs.items()}}
    program.check_rows(engine, "north", rows["north"])
    return sorted(program.train(engine, rows).hidden)

assert run_in_threads(serve) == [["0.0", "0.leaves"]] * 3
assert not [name for name in sys.modules if name.split(".")[0] == "mpyc"]
assert not [name for name in sys.modules if name.startswith("veilwood_papers")]
print("trained")
"""
LINKS = """
from veilwood.errors import VeilwoodError
from veilwood_papers.mpc.processes import MpycLinks

try:
    MpycLinks(0, [1, 2, 3])
except VeilwoodError as error:
    print(error)
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", BLOCKED + program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_secure_training_works_without_mpyc() -> None:
    assert run(TRAINING) == "trained\n"


def test_links_over_mpyc_say_what_they_need() -> None:
    assert "pip install 'veilwood[papers]'" in run(LINKS)
