# SPDX-License-Identifier: Apache-2.0
"""Reproductions of the tables and figures of four papers. Nothing in the library depends on this package."""
