# SPDX-License-Identifier: Apache-2.0
"""Release packs: a model with every document that a reader needs to judge its guarantee, signed as one."""
