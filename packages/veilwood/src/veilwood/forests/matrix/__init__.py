# SPDX-License-Identifier: Apache-2.0
"""Matrix random forests (Tajima, Wu, Houmansadr, AAAI 2025): workloads, strategies, training and answering.

``workloads`` describes the linear queries of a forest, ``strategies`` and ``marginals`` what can be measured to answer
them, ``search`` finds the strategy with the least error, and ``measurement`` plans its release. ``training`` releases a
model once; ``answering`` releases predictions for batches of queries.

Letters of the paper, with their names in the code:

========  ====================  ==========================================================================
letter    name                  meaning
========  ====================  ==========================================================================
n_i       ``sizes[i]``          number of values of feature i
n         ``n_cells``           cells of the table: the product of the n_i (after merging values)
k         ``n_classes``         number of classes
D         data                  n x k table of counts, never written down
T         ``PathWorkload``      decision paths: one 0/1 row per leaf; leaf counts are T D
Q         ``reached_leaves``    one 0/1 row per point to predict: the cell it is in
W         ``Workload``          requested queries: T, Q T' (votes from leaves) or Q T' T (votes from cells)
q, d-bar  ``n_ensembles``,      number of ensembles, and features of each
          ``max_features``
A         ``Strategy``          integer matrix of measurements A D
S         ``features``          set of features of a marginal, also as a bit mask
theta_S ``weights[S]`` integer weight of marginal S: its fraction of the budget
Var_S     ``variances``         variance of the noise on each count of marginal S
R         ``spaces``            residual space: tables over the features R with zero sums along each
g_R       ``residual_traces``   trace of W' W on R
lambda_R  ``space_precisions``  precision with which R is measured
t, z      shares, logits        weights as fractions of the budget, t = softmax(z)
G         ``gram_matrix``       W' W
B         extra rows            rows of a p-Identity strategy below its diagonal
========  ====================  ==========================================================================
"""
