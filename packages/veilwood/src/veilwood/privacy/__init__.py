# SPDX-License-Identifier: Apache-2.0
"""Privacy accounting and mechanisms: losses, noise, plans, certificates, ledgers and the release door."""
