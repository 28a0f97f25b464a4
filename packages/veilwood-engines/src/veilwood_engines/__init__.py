# SPDX-License-Identifier: Apache-2.0
"""Engines for rows that stay where they are: databases, clusters, lake tables and the memory of a GPU.

``veilwood.siblings`` names the modules; the core loads one when rows or ``veilwood.gpu`` ask for it.
"""
