# SPDX-License-Identifier: Apache-2.0
"""A user's table to batches of small integers: schema, canonical text, encoding, files, clusters. Draws no noise."""
