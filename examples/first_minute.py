# SPDX-License-Identifier: Apache-2.0
"""The first minute: plan a private forest, train it, predict, keep the model with its certificate.

Run: python examples/first_minute.py [FOLDER]
"""

import sys
from pathlib import Path

from sklearn.model_selection import train_test_split

import veilwood as vw
from veilwood.models.file import load, save

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")

schema, X, y = vw.datasets.iris()
train, test, train_y, test_y = train_test_split(X, y, test_size=0.2, random_state=0, stratify=y)

forest = vw.RandomTreesClassifier(schema, epsilon=2.0, n_estimators=8, max_depth=4, voting="threshold", random_state=0)
print(forest.plan())  # before any data: what will be released, at what cost, with how much noise

forest.fit(train, train_y)  # the only step that touches private rows
print(f"\nAccuracy on rows held out: {forest.score(test, test_y):.2f}")
print(f"Guarantee: {forest.privacy_}")

save(forest, folder / "iris.veilwood")
assert (load(folder / "iris.veilwood").predict(test) == forest.predict(test)).all()
print(f"Model, with its certificate inside: {folder / 'iris.veilwood'}")
