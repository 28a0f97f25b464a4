# SPDX-License-Identifier: Apache-2.0
"""PrivateForest: chooses what to measure from public facts, measures it, and learns from it."""
