# SPDX-License-Identifier: Apache-2.0
"""Public structure and one pass over rows: forests, how they are grown, counting. Knows no noise."""
