# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of the paper on random decision trees, with privacy and without (Bojarski et al., 2014)."""
