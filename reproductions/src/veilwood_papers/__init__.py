# SPDX-License-Identifier: Apache-2.0
"""Reproductions of the papers. Nothing in the library depends on this package."""
