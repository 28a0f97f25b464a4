# SPDX-License-Identifier: Apache-2.0
"""What three servers compute together on shares: noise, choices, trees, forests, and their plans."""
