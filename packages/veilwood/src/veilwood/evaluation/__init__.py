# SPDX-License-Identifier: Apache-2.0
"""Evaluation of models on private rows."""
