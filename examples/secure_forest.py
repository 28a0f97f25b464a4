# SPDX-License-Identifier: Apache-2.0
"""Two owners train a hidden tree, and a user queries it: three server processes on this machine.

python examples/secure_forest.py
"""

from __future__ import annotations

import veilwood as vw

schema, X, y = vw.datasets.car()
X, y = X.sample(frac=1, random_state=0), y.sample(frac=1, random_state=0)
north, south, new = slice(0, 600), slice(600, 1500), slice(1500, None)

with vw.secure.local_servers(schema, epsilon=2, max_depth=3) as servers:
    # Each owner encodes its rows, splits them into three shares, and sends one share to each server.
    servers.owner("north").contribute(X[north], y[north])
    servers.owner("south").contribute(X[south], y[south])

    # The servers train on shares, and the tree stays in shares. A user's queries and answers are shares, too.
    with servers.user("analyst") as analyst:
        certificate = analyst.wait()
        labels = analyst.predict(X[new])
    print(f"{len(labels)} answers, {(labels == y[new].to_numpy()).mean():.0%} of them right")
    print(certificate)

    # Forests with a public structure need less: owners secret-share counts, the servers release their noisy sum,
    # and the result is an ordinary forest.
    parties = servers.parties({"north": (X[north], y[north]), "south": (X[south], y[south])})
    forest = vw.RandomTreesClassifier(schema, epsilon=2.0, n_estimators=8, max_depth=7, random_state=0).fit(parties)
    print(f"random trees: {forest.score(X[new], y[new]):.0%} right")
    print(forest.privacy_)
