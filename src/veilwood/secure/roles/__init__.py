# SPDX-License-Identifier: Apache-2.0
"""The programs of owners, servers and users, and how they speak to each other over TLS."""
