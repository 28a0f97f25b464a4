# SPDX-License-Identifier: Apache-2.0
"""Private rows: schemas, canonical text, encoding, files, batches and contribution bounds. Draws no noise."""
