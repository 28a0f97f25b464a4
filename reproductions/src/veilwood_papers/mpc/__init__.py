# SPDX-License-Identifier: Apache-2.0
"""Figures of the MPC and DP trees."""
