"""Helper library of the companion to 'Gradient Dynamics of Attention' (arXiv 2512.22473).

From the bottom up: `checks`; `attention`; `laws`, `tasks`; `training`, `geometry`; `sticky`, `feedback`, `inference`;
`models`; `controls`; beside them `paths`, `parameters`, `claims`, `figures` and `plots`, `pairing`, `sweep`; on top
`reproduce`, which runs the notebooks, and `bench`.
"""

# Sums are split between threads, so their last bit depends on how many there are: one number for every machine.
THREADS = 2
