# SPDX-License-Identifier: Apache-2.0
"""Was this person in the training data? A real attack on an ordinary forest and on private ones.

For each of many targets, shadow forests are trained with and without it; the attacker compares what the attacked
forest says about the target with what both kinds of shadows say about it, by likelihood ratio (LiRA, Carlini et al.
2022). Theory bounds any attack, this one included: with epsilon-differential privacy nobody finds more than
e^epsilon times as many members as they accuse others, and the advantage is at most (e^epsilon - 1) / (e^epsilon + 1).

Run: python examples/membership_inference.py [FOLDER]
"""

import sys
import warnings
from pathlib import Path

import numpy as np
from sklearn.ensemble import RandomForestClassifier

import veilwood as vw
from veilwood import plots

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
warnings.simplefilter("ignore", vw.UtilityWarning)

# People with ten measurements and a diagnosis that is partly chance: what a forest can only learn by heart.
rng = np.random.default_rng(0)
N, SHADOWS, ATTACKED = 200, 40, 20
X = rng.random((N, 10))
y = np.where(X[:, 0] + rng.normal(scale=0.5, size=N) > 0.5, "ill", "well")
schema = vw.Schema.numeric((0, 1), classes=["ill", "well"], n_features=10)


def ordinary() -> RandomForestClassifier:
    return RandomForestClassifier(n_estimators=30, random_state=0)


def private(epsilon: float) -> vw.RandomTreesClassifier:
    return vw.RandomTreesClassifier(
        schema, epsilon=epsilon, n_estimators=10, max_depth=8, voting="threshold", random_state=0, n_jobs=1
    )


def confidence(model: object) -> np.ndarray:
    """How sure a model is of the true diagnosis of each person, on the scale of log-odds."""
    share = model.predict_proba(X)[np.arange(N), (y == "well").astype(int)]
    return np.log((share + 1e-3) / (1 - share + 1e-3))


def attack(make) -> tuple[np.ndarray, np.ndarray]:
    """Train many models, each on a random half; attack some of them with the others as shadows."""
    member = rng.random((SHADOWS + ATTACKED, N)) < 0.5
    said = np.array([confidence(make().fit(X[half], y[half])) for half in member])
    shadows, seen = said[:SHADOWS], said[SHADOWS:]
    scores = np.zeros((ATTACKED, N))
    for sign, kind in ((1, member[:SHADOWS]), (-1, ~member[:SHADOWS])):
        mean = np.array([shadows[kind[:, i], i].mean() for i in range(N)])
        spread = np.array([shadows[kind[:, i], i].std() for i in range(N)]) + 0.1
        scores += sign * (-0.5 * ((seen - mean) / spread) ** 2 - np.log(spread))
    return scores.ravel(), member[SHADOWS:].ravel()


def rates(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates at every threshold."""
    order = member[np.argsort(-scores)]
    return np.cumsum(~order) / (~order).sum(), np.cumsum(order) / order.sum()


models = {"ordinary forest": (ordinary, None)}
models |= {f"epsilon {epsilon:g}": (lambda e=epsilon: private(e), epsilon) for epsilon in (8.0, 2.0, 0.5)}
curves = {}
print(f"{'model':>16}  advantage  bound  members found at 1 % false accusations  bound")
for name, (make, epsilon) in models.items():
    false, true = curves[name] = rates(*attack(make))
    advantage, at_one_percent = (true - false).max(), true[false <= 0.01].max()
    bounds = (
        ("   - ", "- ") if epsilon is None else (f"{np.tanh(epsilon / 2):5.2f}", f"{min(1, np.exp(epsilon) / 100):.3f}")
    )
    print(f"{name:>16}  {advantage:9.2f}  {bounds[0]}  {at_one_percent:38.3f}  {bounds[1]}")
    # 4,000 guesses leave some chance: four standard errors of it.
    assert epsilon is None or advantage <= np.tanh(epsilon / 2) + 0.07
picture = folder / "membership-inference.png"
plots.roc_vs_bound(
    curves, {name: epsilon for name, (_, epsilon) in models.items()}, title="Who was in the training data?"
).savefig(picture, dpi=120)
print(f"Picture: {picture}")
