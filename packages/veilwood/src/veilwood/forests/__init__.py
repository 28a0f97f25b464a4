# SPDX-License-Identifier: Apache-2.0
"""Families of forests: their methods, models and estimators. Families do not import each other."""
