# SPDX-License-Identifier: Apache-2.0
"""Accuracy and speed on public tables, next to other libraries."""
