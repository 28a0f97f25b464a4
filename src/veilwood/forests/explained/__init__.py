# SPDX-License-Identifier: Apache-2.0
"""What steps of a loop say about columns and pairs, with error bars; for people."""
