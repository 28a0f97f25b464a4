# SPDX-License-Identifier: Apache-2.0
"""Compiled loops that fit the trees of ``sparse_histogram`` and predict with them. Imported only if numba is installed.

Columns have few groups: one histogram per column evaluates all its splits, where scikit-learn sorts rows. Draws, their
order and the arithmetic are those of scikit-learn, so trees agree to the last bit: without numba, the fitted forest is
the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from veilwood.kernels import njit

_EPSILON = float(np.finfo(np.float64).eps)  # a node of at most this impurity is pure, as in scikit-learn
_MAX_RANDOM = (1 << 31) - 1  # largest number that ``_next_random`` returns


@njit(inline="always")
def _next_random(state: Any) -> Any:
    """Return the next number of an xorshift generator."""
    x = state[0] if state[0] else np.uint32(1)
    x ^= np.uint32(x << np.uint32(13))
    x ^= np.uint32(x >> np.uint32(17))
    x ^= np.uint32(x << np.uint32(5))
    state[0] = x
    return np.int64(x & np.uint32(_MAX_RANDOM))


@njit(inline="always")
def _gini_impurity(counts: Any, total: Any) -> Any:
    """Return the Gini impurity of weighted class counts."""
    squares = 0.0
    for label in range(len(counts)):
        squares += counts[label] * counts[label]
    return 1.0 - squares / (total * total)


@njit(inline="always")
def _swap_features(features: Any, one: Any, other: Any) -> None:
    features[one], features[other] = features[other], features[one]


@njit(nogil=True, cache=True)
def grow_tree(
    columns: Any, target: Any, row_counts: Any, n_groups: Any, n_classes: Any, max_features: Any, min_samples_leaf: Any,
    random_thresholds: Any,
    seed: Any,
) -> Any:  # fmt: skip
    """Grow a tree on rows weighted by ``row_counts``. Return feature, threshold, children and frequencies by node.

    Each node draws ``max_features`` columns that are not constant in it, and splits on the best of them: at the best
    threshold, or at a random one per column (``random_thresholds``). Both children have at least ``min_samples_leaf``
    rows.
    """
    n_columns, n_rows = columns.shape
    most_nodes = 2 * n_rows
    feature, threshold = np.full(most_nodes, -2, np.int32), np.zeros(most_nodes)
    left, right = np.full(most_nodes, -1, np.int32), np.full(most_nodes, -1, np.int32)
    value = np.zeros((most_nodes, n_classes))
    rows = np.arange(n_rows).astype(np.int32)
    aside = np.empty(n_rows, np.int32)
    # Columns that are constant in a node come first; ``constant`` holds those known from its ancestors, in order.
    features, constant = np.arange(n_columns), np.zeros(n_columns, np.int64)
    seen, weighed = np.zeros(n_groups, np.int64), np.zeros((n_groups, n_classes))
    low, high, total = np.zeros(n_classes), np.zeros(n_classes), np.zeros(n_classes)
    waiting = np.zeros((n_rows + 1, 5), np.int64)  # first row, end, parent, is left child, known constants
    waiting_impurity = np.zeros(n_rows + 1)
    waiting[0] = np.array([0, n_rows, -1, 0, 0])
    n_waiting, n_nodes, all_weight = 1, 0, float(row_counts.sum())
    state = np.array([seed], np.uint32)
    while n_waiting:
        n_waiting -= 1
        start, end, parent, on_left, n_known = waiting[n_waiting]
        total[:] = 0.0
        for at in range(start, end):
            total[target[rows[at]]] += row_counts[rows[at]]
        weight = total.sum()
        impurity = _gini_impurity(total, weight) if n_nodes == 0 else waiting_impurity[n_waiting]
        node, n_nodes = n_nodes, n_nodes + 1
        value[node] = total
        if parent >= 0:
            (left if on_left else right)[parent] = node
        size = end - start
        if size < 2 or size < 2 * min_samples_leaf or impurity <= _EPSILON:
            continue
        best, best_feature, best_cut, best_low, best_high = -np.inf, -1, 0.0, 0.0, 0.0
        best_weight = 0.0
        undrawn, n_visited, n_found, n_drawn, n_constant = n_columns, 0, 0, 0, n_known
        while undrawn > n_constant and (n_visited < max_features or n_visited <= n_found + n_drawn):
            n_visited += 1
            place = n_drawn + _next_random(state) % (undrawn - n_found - n_drawn)
            if place < n_known:
                _swap_features(features, n_drawn, place)
                n_drawn += 1
                continue
            place += n_found
            column = columns[features[place]]
            first: Any = n_groups
            last: Any = -1
            for at in range(start, end):
                row = rows[at]
                group: Any = np.int64(column[row])
                first, last = min(first, group), max(last, group)
                seen[group] += 1
                weighed[group, target[row]] += row_counts[row]
            if first == last:
                seen[first] = 0
                weighed[first] = 0.0
                _swap_features(features, place, n_constant)
                n_found += 1
                n_constant += 1
                continue
            undrawn -= 1
            _swap_features(features, undrawn, place)
            chosen = np.float64(first)
            if random_thresholds:
                chosen = np.float64(last - first) * _next_random(state) / _MAX_RANDOM + first
                if chosen == last:
                    chosen = np.float64(first)
            low[:] = 0.0
            n_low: Any = 0
            low_weight = 0.0
            for group in range(int(first), int(last)):
                here, after = seen[group], group + 1
                n_low += here
                for label in range(n_classes):
                    low[label] += weighed[group, label]
                    low_weight += weighed[group, label]
                if random_thresholds and not group <= chosen < after:
                    continue
                if not random_thresholds and here == 0:
                    continue
                if n_low < min_samples_leaf or size - n_low < min_samples_leaf:
                    continue
                for label in range(n_classes):
                    high[label] = total[label] - low[label]
                high_weight = weight - low_weight
                low_impurity, high_impurity = _gini_impurity(low, low_weight), _gini_impurity(high, high_weight)
                score = -high_weight * high_impurity - low_weight * low_impurity
                if score > best:
                    best, best_feature, best_weight = score, features[undrawn], low_weight
                    best_low, best_high = low_impurity, high_impurity
                    while seen[after] == 0:
                        after += 1
                    best_cut = chosen if random_thresholds else group / 2.0 + after / 2.0
            seen[first : last + 1] = 0
            weighed[first : last + 1] = 0.0
        features[:n_known] = constant[:n_known]
        constant[n_known:n_constant] = features[n_known:n_constant]
        if best_feature < 0:
            continue
        gain = impurity - (weight - best_weight) / weight * best_high - best_weight / weight * best_low
        if weight / all_weight * gain + _EPSILON < 0:
            continue
        feature[node], threshold[node] = best_feature, best_cut
        column, middle, behind = columns[best_feature], start, 0
        for at in range(start, end):
            row = rows[at]
            if column[row] <= best_cut:
                rows[middle] = row
                middle += 1
            else:
                aside[behind] = row
                behind += 1
        rows[middle:end] = aside[:behind]
        waiting[n_waiting], waiting_impurity[n_waiting] = np.array([middle, end, node, 0, n_constant]), best_high
        n_waiting += 1
        waiting[n_waiting], waiting_impurity[n_waiting] = np.array([start, middle, node, 1, n_constant]), best_low
        n_waiting += 1
    for node in range(n_nodes):
        value[node] /= value[node].sum()
    used = slice(0, n_nodes)
    return feature[used].copy(), threshold[used].copy(), left[used].copy(), right[used].copy(), value[used].copy()


@njit(nogil=True, cache=True)
def predict_tree(feature: Any, threshold: Any, left: Any, right: Any, value: Any, columns: Any) -> Any:
    """Return the class frequencies in the leaf of each row."""
    probabilities = np.empty((columns.shape[1], value.shape[1]))
    for row in range(columns.shape[1]):
        node = 0
        while left[node] >= 0:
            node = left[node] if columns[feature[node], row] <= threshold[node] else right[node]
        probabilities[row] = value[node]
    return probabilities
