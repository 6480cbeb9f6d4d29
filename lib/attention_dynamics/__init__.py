"""Helper library of the companion to 'Gradient Dynamics of Attention' (arXiv 2512.22473).

From the bottom up: `checks`; `attention`; `laws`, `tasks`; `training`, `geometry`; `sticky`; beside them `paths`,
`parameters`, `figures` and `plots`, `claims`; on top `reproduce`, which runs the notebooks.
"""

# Sums are split between threads, so their last bit depends on how many there are: one number for every machine.
THREADS = 2
