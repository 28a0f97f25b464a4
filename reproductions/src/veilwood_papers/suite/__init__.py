# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of accuracy and speed on public tables, compared with other libraries."""
