# SPDX-License-Identifier: Apache-2.0
"""Engines that process rows where they are stored: databases, clusters, lake tables and GPU memory.

``veilwood.siblings`` lists the modules; the core loads a module when the type of the rows or ``veilwood.gpu`` needs it.
"""
