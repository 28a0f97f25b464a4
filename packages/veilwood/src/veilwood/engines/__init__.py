# SPDX-License-Identifier: Apache-2.0
"""Engines that count rows where they are: databases, clusters and the GPU."""
