# SPDX-License-Identifier: Apache-2.0
"""Membership inference: a real attack on an ordinary forest and on private ones.

Prints one line per model: the members found at 1 % false accusations, the advantage, and what theory allows. The
attacker trains shadow forests with and without each target. A likelihood ratio compares the confidence of the
attacked forest on the target with that of both kinds of shadows (LiRA, Carlini et al. 2022). Theory bounds every
attack. With epsilon-differential privacy the true positive rate is at most e^epsilon times the false positive rate,
and the advantage is at most (e^epsilon - 1) / (e^epsilon + 1).

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

# People with ten measurements and a diagnosis that is partly random: a forest can only memorise the random part.
rng = np.random.default_rng(0)
N, SHADOWS, ATTACKED = 200, 40, 20
X = rng.random((N, 10))
y = np.where(X[:, 0] + rng.normal(scale=0.5, size=N) > 0.5, "ill", "well")
schema = vw.Schema.numeric((0, 1), classes=["ill", "well"], n_features=10)


def ordinary() -> RandomForestClassifier:
    return RandomForestClassifier(n_estimators=30, random_state=0)


def private(epsilon: float) -> vw.PrivateForestClassifier:
    return vw.PrivateForestClassifier(schema, epsilon=epsilon, n_rows=N // 2, random_state=0, n_jobs=1)


def confidence(model: object) -> np.ndarray:
    """Return the log-odds that a model gives to the true diagnosis of each person."""
    share = model.predict_proba(X)[np.arange(N), (y == "well").astype(int)]
    return np.log((share + 1e-3) / (1 - share + 1e-3))


def attack(make) -> tuple[np.ndarray, np.ndarray]:
    """Train many models, each on a random half, and attack some of them with the others as shadows."""
    member = rng.random((SHADOWS + ATTACKED, N)) < 0.5
    values = np.array([confidence(make().fit(X[half], y[half])) for half in member])
    shadows, seen = values[:SHADOWS], values[SHADOWS:]
    scores = np.zeros((ATTACKED, N))
    for sign, kind in ((1, member[:SHADOWS]), (-1, ~member[:SHADOWS])):
        mean = np.array([shadows[kind[:, i], i].mean() for i in range(N)])
        spread = np.array([shadows[kind[:, i], i].std() for i in range(N)]) + 0.1
        scores += sign * (-0.5 * ((seen - mean) / spread) ** 2 - np.log(spread))
    return scores.ravel(), member[SHADOWS:].ravel()


def rates(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return false and true positive rates at every threshold."""
    order = member[np.argsort(-scores)]
    return np.cumsum(~order) / (~order).sum(), np.cumsum(order) / order.sum()


models = {"ordinary forest": (ordinary, None)}
models |= {f"epsilon {epsilon:g}": (lambda e=epsilon: private(e), epsilon) for epsilon in (8.0, 2.0, 0.5)}
curves = {}
print("| model | members found | bound | advantage | bound of the advantage |\n|---|---|---|---|---|")
for name, (make, epsilon) in models.items():
    false, true = curves[name] = rates(*attack(make))
    advantage, at_one_percent = (true - false).max(), true[false <= 0.01].max()
    bounds = ("-", "-") if epsilon is None else (f"{min(1, np.exp(epsilon) / 100):.1%}", f"{np.tanh(epsilon / 2):.2f}")
    found = f"{at_one_percent:.1%}".replace("%", " %")
    print(f"| {name} | {found} | {bounds[0].replace('%', ' %')} | {advantage:.2f} | {bounds[1]} |")
    # Four standard errors, since the rates come from 4,000 guesses.
    assert epsilon is None or advantage <= np.tanh(epsilon / 2) + 0.07
picture = folder / "membership-inference.png"
plots.roc_vs_bound(
    curves, {name: epsilon for name, (_, epsilon) in models.items()}, title="Who was in the training data?"
).savefig(picture, dpi=120)
print(f"Picture: {picture}")
