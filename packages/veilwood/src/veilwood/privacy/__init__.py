# SPDX-License-Identifier: Apache-2.0
"""What is promised and paid: losses, noise, plans, certificates, the ledger and the door. Knows no data."""
