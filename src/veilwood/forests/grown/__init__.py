# SPDX-License-Identifier: Apache-2.0
"""Forests grown level by level through the door: private medians and greedy splits."""
