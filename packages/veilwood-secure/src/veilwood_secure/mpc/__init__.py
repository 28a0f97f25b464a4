# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on secret shares among three servers."""
