# %% [markdown]
# # Advantage-based routing: the gradient of the attention scores
#
# **What it shows.** Law L1 of the paper: under cross-entropy, the gradient of an attention score is the attention
# weight times an *advantage*, how much worse than the row's average a position is for the loss. The law is derived
# here with no step skipped, checked in three independent ways, and then read: which position gains attention, what
# the law leaves unchanged, and where the gradient dies out.
#
# **For whom.** Students who meet the derivation for the first time, and referees who look for the gap in it.
#
# **What to know first.** The chain rule in several variables, the softmax, and matrix products. No attention is
# presumed.
#
# **Time.** About 10 seconds on two cores.
#
# | symbol | in the code | meaning | shape |
# |---|---|---|---|
# | $x_i$ | `inputs[i]` | input at position $i$, for $i = 0, \dots, T-1$ | $d_x$ |
# | $q_i, k_j$ | `queries[i]`, `keys[j]` | query and key | $d_k$ |
# | $v_j$ | `values[j]` | value | $d_v$ |
# | $s_{ij}$ | `scores[i, j]` | score of key $j$ for query $i$ | scalar |
# | $\alpha_{ij}$ | `weights[i, j]` | attention weight; row $i$ is a probability vector over $j$ | scalar |
# | $g_i$ | `context[i]` | context, the weighted mean of the values | $d_v$ |
# | $z_i$ | `logits[i]` | logits over $C$ classes | $C$ |
# | $p_i, y_i$ | `probabilities[i]`, `targets[i]` | predicted distribution and true class | $C$, integer |
# | $u_i$ | `upstream[i]` | upstream gradient $\partial L / \partial g_i$ | $d_v$ |
# | $b_{ij}$ | `compatibility[i, j]` | compatibility $u_i \cdot v_j$ | scalar |
# | $\mathbb E_{\alpha_i}[b]$ | `mean_compatibility[i]` | $\sum_j \alpha_{ij} b_{ij}$ | scalar |
#
# Vectors in the formulas are columns, as in the paper. In the code tokens are rows, so a parameter matrix has shape
# (d_in, d_out) and acts from the right, `queries = inputs @ head.query`: it is the transpose of the paper's $W_Q$,
# and likewise for $W_K$, $W_V$ and $W_O$.

# %%
import math

import pandas as pd
import sympy
import torch
from IPython.display import Markdown

from attention_dynamics import claims, figures, laws, parameters
from attention_dynamics.laws import relative_error
from attention_dynamics.attention import attend, causal_mask, initial_head, project
from attention_dynamics.plots import routing as plots

# %% tags=["parameters"]
seed: int = 0  # seed of every random draw
results: str = "results"  # folder for figures and records

# %%
seed, results = parameters.checked(seed=seed, results=results)
figures.use_style()

# %% [markdown]
# ## The forward pass of one head
#
# Every position makes a query, a key and a value. Position $i$ may look at the positions up to and including itself
# (*causal* attention):
#
# $$q_i = W_Q x_i, \quad k_j = W_K x_j, \quad v_j = W_V x_j, \qquad
#   s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d_k}} \ \text{ for } j \le i, \qquad s_{ij} = -\infty \ \text{ for } j > i,$$
#
# $$\alpha_{ij} = \frac{e^{s_{ij}}}{\sum_{l} e^{s_{il}}}, \qquad g_i = \sum_j \alpha_{ij} v_j, \qquad z_i = W_O\, g_i,
#   \qquad p_i = \operatorname{softmax}(z_i), \qquad L = \frac1T \sum_i -\log p_i[y_i].$$
#
# Six random tokens and a random head are enough, since the law holds for any. Everything is in float64, so that an
# error in the law could not hide behind rounding.

# %%
T, d_x, d_k, d_v, n_classes = 6, 5, 3, 4, 4
generator = torch.Generator().manual_seed(seed)
inputs = torch.randn(T, d_x, generator=generator, dtype=torch.float64)
targets = torch.randint(n_classes, (T,), generator=generator)
head = initial_head(d_x, d_k, d_v, n_classes, generator, scale=0.6, dtype=torch.float64)

mask = causal_mask(T)  # True where query i (row) may see key j (column)
trace = attend(*project(head, inputs), mask)
logits = trace.context @ head.output
loss = laws.cross_entropy(logits, targets)

worst = float((trace.weights.sum(-1) - 1).abs().max())
assert worst < 1e-14 and not trace.weights[~mask].any()
print(f"Each of the {T} rows of weights sums to one; future positions have weight exactly zero.")
print(f"The loss is {loss:.4f} nats.")

# %% [markdown]
# ## The upstream gradient, from the loss down to the context
#
# **Loss to logits.** Position $i$ contributes $\frac1T \ell_i$ with $\ell_i = -\log p_i[y_i] = -z_{i, y_i} + \log
# \sum_c e^{z_{ic}}$. Differentiate by one logit. The first term gives $-1$ if $c = y_i$ and else $0$; the second
# gives
#
# $$\frac{\partial}{\partial z_{ic}} \log \sum_{c'} e^{z_{ic'}} = \frac{e^{z_{ic}}}{\sum_{c'} e^{z_{ic'}}} = p_i[c].$$
#
# With $e_{y}$ the unit vector of class $y$, and since no other position's loss contains $z_i$,
#
# $$\frac{\partial L}{\partial z_i} = \frac{p_i - e_{y_i}}{T}.$$
#
# **Logits to context.** $z_{ic} = \sum_a (W_O)_{ca}\, g_{ia}$, so $\partial z_{ic} / \partial g_{ia} = (W_O)_{ca}$.
# Summing over the classes, $\partial L/\partial g_{ia} = \sum_c (W_O)_{ca}\, \partial L/\partial z_{ic}$, or in one
# line
#
# $$u_i = \frac{\partial L}{\partial g_i} = \frac1T\, W_O^\top (p_i - e_{y_i}).$$
#
# In the code $W_O^\top$ is `head.output` itself; it acts on rows, so it appears transposed once more.

# %%
probabilities = torch.softmax(logits, -1)
one_hot = torch.eye(n_classes, dtype=torch.float64)[targets]
upstream = (probabilities - one_hot) / T @ head.output.mT


context = trace.context.clone().requires_grad_()
(by_autograd,) = torch.autograd.grad(laws.cross_entropy(context @ head.output, targets), context)
upstream_error = relative_error(upstream, by_autograd)
assert upstream_error < 1e-12
assert torch.allclose(
    laws.logit_gradient(logits, targets) @ head.output.mT, upstream, rtol=0, atol=1e-15
)
print(f"The formula for u differs from autograd by {upstream_error:.1e} of its largest entry.")
print("The library computes the same.")

# %% [markdown]
# ## From the context to the weights: compatibility
#
# Only $g_i$ contains row $i$ of the weights, through $g_i = \sum_j \alpha_{ij} v_j$. Treat the $\alpha_{ij}$ as free
# numbers for the moment (that they are tied together comes next). Then $\partial g_i/\partial\alpha_{ij} = v_j$ and
#
# $$\frac{\partial L}{\partial \alpha_{ij}} = \frac{\partial L}{\partial g_i} \cdot \frac{\partial g_i}{\partial \alpha_{ij}} = u_i \cdot v_j = b_{ij}.$$
#
# This is the *compatibility*. The sign convention is that of a cost: **a negative $b_{ij}$ means that more of $v_j$
# in the context of $i$ lowers the loss**.

# %%
compatibility = laws.compatibility(upstream, trace.values)  # upstream @ values.T

free_weights = trace.weights.clone().requires_grad_()
loss_of_weights = laws.cross_entropy(free_weights @ trace.values @ head.output, targets)
(by_autograd,) = torch.autograd.grad(loss_of_weights, free_weights)
compatibility_error = relative_error(compatibility, by_autograd)
assert compatibility_error < 1e-12
print(
    f"b differs from the derivative by free weights by {compatibility_error:.1e} of its largest"
    " entry."
)

# %% [markdown]
# ## From the weights to the scores: the softmax Jacobian
#
# Drop the row index and write $\alpha_j = e^{s_j} / Z$ with $Z = \sum_l e^{s_l}$. By the quotient rule, with
# $\partial e^{s_j} / \partial s_l = \delta_{jl}\, e^{s_j}$ and $\partial Z/\partial s_l = e^{s_l}$,
#
# $$\frac{\partial \alpha_j}{\partial s_l} = \frac{\delta_{jl}\, e^{s_j} Z - e^{s_j} e^{s_l}}{Z^2}
#   = \delta_{jl}\, \frac{e^{s_j}}{Z} - \frac{e^{s_j}}{Z}\,\frac{e^{s_l}}{Z} = \alpha_j (\delta_{jl} - \alpha_l).$$
#
# The matrix is symmetric, and its rows sum to $\alpha_j (1 - \sum_l \alpha_l) = 0$: raising all scores of a row by
# the same amount moves no weight.

# %%
jacobian = laws.softmax_jacobian(trace.weights)  # (T, T, T): one matrix for each query
differentiate = torch.autograd.functional.jacobian
by_autograd = torch.stack(
    [differentiate(lambda row: torch.softmax(row, -1), row) for row in trace.scores]
)
jacobian_error = relative_error(jacobian, by_autograd)
largest_row_sum = float(jacobian.sum(-1).abs().max())
assert jacobian_error < 1e-12 and largest_row_sum < 1e-15
print(
    f"alpha_j (delta_jl - alpha_l) differs from autograd's Jacobian by {jacobian_error:.1e} of the"
    " largest entry."
)
print("Its rows sum to zero within 1e-15.")

# %% [markdown]
# ## The law
#
# The score $s_{il}$ enters row $i$ of the weights and nothing else. Chain the last two results, summing over every
# weight that $s_{il}$ moves:
#
# $$\frac{\partial L}{\partial s_{il}} = \sum_j \frac{\partial L}{\partial\alpha_{ij}} \frac{\partial \alpha_{ij}}{\partial s_{il}}
#   = \sum_j b_{ij}\, \alpha_{ij} (\delta_{jl} - \alpha_{il}).$$
#
# Split the bracket. In the first sum $\delta_{jl}$ keeps only $j = l$; in the second $\alpha_{il}$ does not depend on
# $j$:
#
# $$\frac{\partial L}{\partial s_{il}} = \sum_j b_{ij}\alpha_{ij}\delta_{jl} - \alpha_{il} \sum_j \alpha_{ij} b_{ij}
#   = \alpha_{il} b_{il} - \alpha_{il}\, \mathbb E_{\alpha_i}[b].$$
#
# Take $\alpha_{il}$ out and rename $l$ to $j$:
#
# $$\boxed{\ \frac{\partial L}{\partial s_{ij}} = \alpha_{ij} \bigl(b_{ij} - \mathbb E_{\alpha_i}[b]\bigr)\ } \qquad \text{(L1)}$$
#
# The bracket is the *advantage*. It compares position $j$ with what the row already attends to, and the weight in
# front says how far the softmax lets that comparison through.

# %%
mean_compatibility = laws.mean_compatibility(trace.weights, compatibility)
advantage = compatibility - mean_compatibility
score_gradient = trace.weights * advantage

with_jacobian = (jacobian @ compatibility.unsqueeze(-1)).squeeze(-1)  # the line before the algebra
product_error = relative_error(score_gradient, with_jacobian)
assert product_error < 1e-12
assert torch.equal(score_gradient, laws.score_gradient(trace.weights, upstream, trace.values))
print(
    f"Weight times advantage agrees with the Jacobian product to {product_error:.1e} of the largest"
    " entry."
)

# %% [markdown]
# ## Check 1 of 3: symbols
#
# Numbers can agree by luck; symbols cannot. Take a causal sequence of three positions, two classes and values of
# width two, with *every* score, value and output weight a free symbol: six scores, six value entries, four output
# weights. Write the loss as the forward pass above does, without any of the derivation, let SymPy differentiate it by
# each score, and subtract L1. Each difference is put over a common denominator, which is a product of sums of
# exponentials and so never zero; the law holds exactly if the numerator expands to $0$.

# %%
symbolic_targets = [0, 1, 0]
n = len(symbolic_targets)
s = {(i, j): sympy.Symbol(f"s_{i}{j}", real=True) for i in range(n) for j in range(i + 1)}
v = sympy.Matrix(n, 2, lambda j, a: sympy.Symbol(f"v_{j}{a}", real=True))
w = sympy.Matrix(2, 2, lambda a, c: sympy.Symbol(f"w_{a}{c}", real=True))


def normalised(exponents):
    """Softmax of a list of symbolic exponents, as a row."""
    powers = [sympy.exp(x) for x in exponents]
    return sympy.Matrix([[power / sum(powers) for power in powers]])


symbolic_weights = [normalised([s[i, j] for j in range(i + 1)]) for i in range(n)]
symbolic_logits = [symbolic_weights[i] * v[: i + 1, :] * w for i in range(n)]
symbolic_loss = 0
for z, y in zip(symbolic_logits, symbolic_targets, strict=True):
    symbolic_loss += (sympy.log(sum(sympy.exp(entry) for entry in z)) - z[y]) / n
assert s[0, 0] not in symbolic_loss.free_symbols
print(f"The symbolic loss holds {len(symbolic_loss.free_symbols)} free symbols.")
print(f"Of the {len(s)} scores one has cancelled: s_00, alone in its row.")

# %%
remainders, remainders_without_mean = {}, {}
for (i, j), score in s.items():
    u = (
        (normalised(symbolic_logits[i]) - sympy.eye(2)[symbolic_targets[i], :]) * w.T / n
    )  # W_O (p - e_y) / T
    b = u * v[: i + 1, :].T
    alpha = symbolic_weights[i]
    mean = (alpha * b.T)[0]
    derivative = sympy.diff(symbolic_loss, score)
    for law, found in (
        (alpha[j] * (b[j] - mean), remainders),
        (alpha[j] * b[j], remainders_without_mean),
    ):
        found[i, j] = sympy.expand(sympy.numer(sympy.together(derivative - law)))

symbolic_error = 0.0 if all(remainder == 0 for remainder in remainders.values()) else 1.0
left_over = sum(remainder != 0 for remainder in remainders_without_mean.values())
assert symbolic_error == 0 and left_over == len(s)
print(f"The derivative minus L1 is exactly 0 for all {len(remainders)} scores.")
print(f"Without the mean, {left_over} of {len(s)} differences do not cancel.")

# %% [markdown]
# ## Check 2 of 3: autograd
#
# Make the scores the variable, run the rest of the forward pass, and let PyTorch differentiate. One sequence of six
# tokens could be a special case, so two hundred random sequences of sixteen positions follow. Their queries, keys and
# values are drawn directly; the queries are three times larger, which makes many rows nearly one-hot.
#
# One caution. PyTorch's own backward pass of the softmax is written in the form of L1, so this check tests our
# derivation and code against an independent implementation, but not against an independent idea. The symbols before
# and the finite differences after do not know the law.


# %%
def loss_of(scores, values, output, targets):
    """The forward pass from the scores on: (..., T, T) to (...,)."""
    logits = torch.softmax(scores, -1) @ values @ output
    return laws.cross_entropy(logits, targets.expand(logits.shape[:-1]))


def autograd_gradient(scores, values, output, targets):
    scores = scores.clone().requires_grad_()
    return torch.autograd.grad(loss_of(scores, values, output, targets).sum(), scores)[0]


exact = autograd_gradient(trace.scores, trace.values, head.output, targets)
autograd_errors = [relative_error(score_gradient, exact)]

queries, keys, values = torch.randn(3, 200, 16, d_v, generator=generator, dtype=torch.float64)
many = attend(3 * queries, keys, values, causal_mask(16))
many_targets = torch.randint(n_classes, (200, 16), generator=generator)
many_upstream = laws.logit_gradient(many.context @ head.output, many_targets) @ head.output.mT
by_law = laws.score_gradient(many.weights, many_upstream, values)
by_autograd = autograd_gradient(many.scores, values, head.output, many_targets)
autograd_errors += [relative_error(*pair) for pair in zip(by_law, by_autograd, strict=True)]

autograd_error = max(autograd_errors)
assert autograd_error < 1e-12
print(
    f"Largest relative error over {len(autograd_errors)} sequences: {autograd_error:.1e}, rounding"
    " in float64."
)

# %% [markdown]
# ## Check 3 of 3: central finite differences
#
# The last check uses nothing but values of the loss. Move one score up and down by $h$. By Taylor's theorem
#
# $$\frac{L(s + h) - L(s - h)}{2h} = L'(s) + \frac{h^2}{6} L'''(s) + O(h^4),$$
#
# so the error must fall a hundredfold for each tenfold smaller $h$, until rounding in $L$, about $10^{-16} / h$,
# takes over. At $h = 10^{-4}$ we expect both parts to be small: from truncation about $10^{-8}/6$ times the ratio of
# the third to the first derivative, from rounding about $10^{-12}$ nats per unit score. A *wrong* law would miss by
# the same amount at every $h$; two of them stand beside L1.

# %%
pairs = mask.nonzero()  # the allowed (i, j)


def central_differences(h):
    """(T, T) difference quotient of the loss by every allowed score."""
    shift = torch.zeros(len(pairs), T, T, dtype=torch.float64)
    shift[torch.arange(len(pairs)), pairs[:, 0], pairs[:, 1]] = h
    up, down = (
        loss_of(trace.scores + move, trace.values, head.output, targets) for move in (shift, -shift)
    )
    quotient = torch.zeros(T, T, dtype=torch.float64)
    quotient[mask] = (up - down) / (2 * h)
    return quotient


without_mean, wrong_sign = trace.weights * compatibility, -score_gradient
steps = [1e-1, 1e-2, 1e-3, 1e-4]
quotients = [central_differences(h) for h in steps]
errors = [relative_error(score_gradient, quotient) for quotient in quotients]
for h, error, quotient in zip(steps, errors, quotients, strict=True):
    others = [relative_error(wrong, quotient) for wrong in (without_mean, wrong_sign)]
    print(
        f"h = {h:.0e}: L1 misses by {error:.1e}; without the mean {others[0]:.1f}, with the wrong"
        f" sign {others[1]:.1f}"
    )

order = math.log10(errors[0] / errors[2]) / 2
difference_error = errors[-1]
assert 1.9 < order < 2.1 and difference_error < 1e-6
print(f"From h = 1e-1 to 1e-3 the error falls like h to the power {order:.2f}.")

# %% [markdown]
# ## The law, taken apart
#
# Rows are queries, columns are keys, and the upper right is blank because the future is masked. Read one row from
# left to right. The weights say where the query looks. The compatibility says what each value would do to the loss.
# Subtracting the row's mean gives the advantage: blue helps more than what is there already. The last panel is the
# first times the third, which is the law. Look for a position with a large advantage but little weight (with the
# default seed, key 1 of query 5): its gradient is pale. The top row has one position, and so nothing to compare it
# with.

# %%
figure, data = plots.routing(trace.weights, compatibility, advantage, score_gradient, mask)
figures.save(figure, "01_routing", data, results)

# %% [markdown]
# ## What follows: every row of the gradient sums to zero
#
# $$\sum_j \frac{\partial L}{\partial s_{ij}} = \sum_j \alpha_{ij} b_{ij} - \mathbb E_{\alpha_i}[b] \sum_j \alpha_{ij}
#   = \mathbb E_{\alpha_i}[b] - \mathbb E_{\alpha_i}[b] \cdot 1 = 0.$$
#
# Routing is a competition: what one position of a row gains in score, the others lose.

# %%
worst = float(score_gradient.sum(-1).abs().max() / score_gradient.abs().max())
assert worst < 1e-13
print("The largest row sum is below 1e-13 of the largest entry.")
print(f"That entry is {float(score_gradient.abs().max()):.3f} nats per unit score.")

# %% [markdown]
# ## What follows: only differences within a row count
#
# Add a constant $c_i$ to all $b_{ij}$ of row $i$. The mean grows by $c_i \sum_j \alpha_{ij} = c_i$ too, so the
# advantage, and with it the gradient, stays as it was. In particular, with $u_i$ given, shifting *all* values by one
# vector $a$ changes $b_{ij}$ by $u_i \cdot a$ for every $j$, and routing does not notice. Reinforcement learning
# knows this as the *baseline*: for fixed $b$, L1 is the gradient of the expected cost $\sum_j \alpha_{ij} b_{ij}$ of
# a softmax policy over positions.

# %%
constants = torch.randn(T, 1, generator=generator, dtype=torch.float64)
shift = torch.randn(d_v, generator=generator, dtype=torch.float64)
with_constants = trace.weights * laws.advantage(trace.weights, compatibility + constants)
with_shift = laws.score_gradient(trace.weights, upstream, trace.values + shift)
assert (
    relative_error(with_constants, score_gradient) < 1e-12
    and relative_error(with_shift, score_gradient) < 1e-12
)
print("Row constants added to b, or one vector added to all values:")
print("the score gradient changes by less than 1e-12 of its size.")

# %% [markdown]
# ## What follows: the mean needs no row of weights
#
# By definition of $b$, and because the dot product is linear,
#
# $$\mathbb E_{\alpha_i}[b] = \sum_j \alpha_{ij}\, (u_i \cdot v_j) = u_i \cdot \sum_j \alpha_{ij} v_j = u_i \cdot g_i .$$
#
# The left side runs over a whole row of the $T \times T$ matrices $\alpha$ and $b$; the right side takes two vectors
# of length $d_v$: $g_i$, which the forward pass has left behind, and $u_i$, which the backward pass brings. FlashAttention's backward pass computes it first, once for
# each query, and calls it $D_i$.

# %%
D = (upstream * trace.context).sum(-1, keepdim=True)
mean_error = relative_error(D, mean_compatibility)
assert mean_error < 1e-12
print(f"u_i . g_i equals the mean compatibility within {mean_error:.1e} of the largest.")

# %% [markdown]
# Why it matters: with $D_i$ known, every entry $\alpha_{ij} (b_{ij} - D_i)$ stands by itself. If the forward pass
# also kept the row's $\log \sum_l e^{s_{il}}$, then $\alpha_{ij}$ can be made again from $q_i$ and $k_j$ alone. So
# the gradient is computed in blocks of keys, each used and thrown away, and nothing of size $T \times T$ is ever
# held: two numbers for each query instead of $T$.

# %%
row_normaliser = torch.logsumexp(trace.scores, -1, keepdim=True)
block_errors = []
for start in range(0, T, 2):
    block = slice(start, start + 2)
    scores = (trace.queries @ trace.keys[block].mT / math.sqrt(d_k)).masked_fill(
        ~mask[:, block], -math.inf
    )
    gradient = torch.exp(scores - row_normaliser) * (upstream @ trace.values[block].mT - D)
    block_errors.append(relative_error(gradient, exact[:, block]))
assert max(block_errors) < 1e-12
print(
    f"{len(block_errors)} blocks of {T} x 2, made without any whole row, agree with autograd within"
    " 1e-12."
)

# %% [markdown]
# ## What follows: who gains under descent
#
# A small descent step on the scores, $\Delta s_{ij} = -\eta\, \alpha_{ij} (b_{ij} - \mathbb E_{\alpha_i}[b])$, raises
# a score **exactly when the advantage is negative**. For the weights it is worth being careful. To first order in
# $\eta$, with $A_{ij}$ the advantage and the softmax Jacobian,
#
# $$\Delta\alpha_{ij} = \sum_l \alpha_{ij}(\delta_{jl} - \alpha_{il})\, \Delta s_{il}
#   = -\eta\, \alpha_{ij} \Bigl(\alpha_{ij} A_{ij} - \sum_l \alpha_{il}^2 A_{il}\Bigr).$$
#
# - In *odds* the rule is exact for any step: $\log(\alpha_{ij}/\alpha_{il})$ changes by $\Delta s_{ij} - \Delta
#   s_{il}$, so a position with negative advantage gains on every position whose advantage is not negative.
# - As a *weight* it gains if $\alpha_{ij} A_{ij}$ lies below the row's mean of that product. A slightly helpful
#   position can therefore lose weight to a very helpful one in the same row.
# - For the row as a whole, $\sum_j b_{ij}\, \Delta\alpha_{ij} = \sum_l \frac{\partial L}{\partial s_{il}} \Delta
#   s_{il} = -\eta \sum_l \bigl(\frac{\partial L}{\partial s_{il}}\bigr)^2 \le 0$: attention always moves to better
#   compatibility.

# %%
eta = 0.01 / float(score_gradient.abs().max())  # the largest score moves by 0.01
moved_scores = trace.scores - eta * score_gradient
moved_weights = torch.softmax(moved_scores, -1)
gain = moved_weights - trace.weights

row = T - 1
pd.DataFrame(
    {
        "key": range(T),
        "weight": [f"{x:.3f}" for x in trace.weights[row]],
        "advantage": [f"{x:+.3f}" for x in advantage[row]],
        "change of score": [f"{x:+.5f}" for x in (moved_scores - trace.scores)[row]],
        "change of weight": [f"{x:+.5f}" for x in gain[row]],
    }
).set_index("key")

# %%
helpful = mask & (advantage < 0)
assert ((moved_scores - trace.scores)[helpful] > 0).all()
for i in range(1, T):
    log_odds_gain = torch.log(moved_weights[i, : i + 1] / trace.weights[i, : i + 1])
    better = helpful[i, : i + 1]
    assert log_odds_gain[better].min() > log_odds_gain[~better].max()

first_order = (
    -eta * trace.weights * (score_gradient - (trace.weights * score_gradient).sum(-1, keepdim=True))
)
gain_error = relative_error(gain, first_order)
assert gain_error < 0.03
drop = loss - laws.cross_entropy(moved_weights @ trace.values @ head.output, targets)
expected_drop = eta * (score_gradient**2).sum()
assert abs(drop / expected_drop - 1) < 0.03
gaining = int((gain[helpful] > 0).sum())
print(
    f"{int(helpful.sum())} positions have negative advantage. All gain score and odds; {gaining}"
    " gain weight."
)
print(
    f"The weights move as the first-order formula says, to {gain_error:.1e} of the largest change."
)
print(f"The loss falls by {float(drop / expected_drop):.4f} of eta times the squared gradient.")

# %% [markdown]
# The exception is not a matter of the step size. Three positions with weights 0.5, 0.4, 0.1 and compatibilities that
# leave the second a little better than average and the first much better:

# %%
alpha = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64)
example_advantage = torch.tensor([-1.0, -0.1, 5.4], dtype=torch.float64)
assert abs(float(alpha @ example_advantage)) < 1e-15  # an advantage has mean zero under the weights
rate = -alpha * (alpha * example_advantage - (alpha**2 * example_advantage).sum())
assert rate[0] > 0 > rate[1]
print("advantage             ", *(f"{x:+.3f}" for x in example_advantage))
print("rate of change, score ", *(f"{x:+.3f}" for x in -alpha * example_advantage))
print("rate of change, weight", *(f"{x:+.3f}" for x in rate))
print(
    "The second position has a negative advantage and gains score, yet it loses weight to the"
    " first."
)

# %% [markdown]
# How often is the exception? In the two hundred random sequences of check 2, over all positions with negative advantage, by the sign of
# the first-order change of the weight:

# %%
many_gain = -many.weights * (by_law - (many.weights * by_law).sum(-1, keepdim=True))
many_helpful = (by_law < 0) & causal_mask(16)
gaining_share = ((many_gain > 0) & many_helpful).sum((-1, -2)) / many_helpful.sum((-1, -2))
print(f"share of positions with negative advantage whose weight grows: {gaining_share.mean():.3f}")

# %% [markdown]
# ## What follows: masked positions, and rows of one position
#
# A masked position has $\alpha_{ij} = 0$, so its gradient is $0 \cdot (b_{ij} - \mathbb E_{\alpha_i}[b]) = 0$
# whatever its value could do: $b_{ij}$ itself need not be zero. A row with one allowed position has $\alpha_{ij} =
# 1$, hence $\mathbb E_{\alpha_i}[b] = b_{ij}$ and again zero: where there is no choice there is nothing to learn
# about choosing.

# %%
assert not score_gradient[~mask].any() and not exact[~mask].any()
assert not score_gradient[0].any()
assert float(compatibility[~mask].abs().min()) > 0
largest_masked = float(compatibility[~mask].abs().max())
print(
    f"All {int((~mask).sum())} masked positions: gradient exactly 0, though |b| reaches"
    f" {largest_masked:.3f} there."
)
print(f"Row 0, one position: gradient exactly 0, though b = {float(compatibility[0, 0]):+.3f}.")

# %% [markdown]
# ## What follows: saturation
#
# How large can the score gradient be? Since $\sum_l \alpha_{il} = 1$, the advantage is an average of differences, in
# which the term $l = j$ vanishes:
#
# $$b_{ij} - \mathbb E_{\alpha_i}[b] = \sum_l \alpha_{il} (b_{ij} - b_{il}) = \sum_{l \ne j} \alpha_{il} (b_{ij} - b_{il}),
#   \qquad \text{so} \qquad \Bigl|\frac{\partial L}{\partial s_{ij}}\Bigr| \le \alpha_{ij} (1 - \alpha_{ij}) \Bigl(\max_l b_{il} - \min_l b_{il}\Bigr),$$
#
# the largest and smallest over the allowed positions. **The score gradient vanishes as the weight nears 0 and as it
# nears 1**, whatever the loss is.

# %%
highest = compatibility.masked_fill(~mask, -math.inf).amax(-1, keepdim=True)
lowest = compatibility.masked_fill(~mask, math.inf).amin(-1, keepdim=True)
spread = highest - lowest
bound = trace.weights * (1 - trace.weights) * spread
assert (score_gradient.abs() <= bound + 1e-15).all()
share = (score_gradient.abs() / bound)[2:][
    mask[2:]
]  # with two positions, row 1, the bound is met exactly
print(
    "The bound holds for every pair; in rows of three or more the gradient reaches up to"
    f" {share.max():.3f} of it."
)

# %% [markdown]
# The value gradient has no such factor. $v_j$ enters $g_i$ with coefficient $\alpha_{ij}$, so $\partial L / \partial
# v_j = \sum_i \alpha_{ij} u_i$ (law L2, the subject of the next notebook). As $\alpha_{ij} \to 1$, query $i$'s
# share of that sum tends to its full upstream gradient.
#
# The smallest example has one query, two positions and two classes; class 0 is right. The value of position 0 speaks
# for class 0, that of position 1 for class 1. Only the score gap $s_0 - s_1$ is swept. With two positions the bound
# is an equality, $|\partial L/\partial s_0| = \alpha_0 (1 - \alpha_0)\, |b_0 - b_1|$.

# %%
gap = torch.linspace(-12, 12, 49, dtype=torch.float64)
scores = (
    torch.stack([gap, torch.zeros_like(gap)], -1).unsqueeze(-2).requires_grad_()
)  # (gaps, query, keys)
values = torch.eye(2, dtype=torch.float64).repeat(len(gap), 1, 1).requires_grad_()
output = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
losses = loss_of(scores, values, output, torch.tensor([0]))
score_part, value_part = torch.autograd.grad(losses.sum(), (scores, values))

weights = torch.softmax(scores.detach(), -1)
classes = torch.zeros(len(gap), 1, dtype=torch.long)
u = laws.logit_gradient(weights @ values.detach() @ output, classes) @ output.mT
assert relative_error(laws.score_gradient(weights, u, values.detach()), score_part) < 1e-12
assert relative_error(laws.value_gradient(weights, u), value_part) < 1e-12

alpha, slope = weights[:, 0, 0], score_part[:, 0, 0]
value_norms = value_part.norm(dim=-1)
shown = [int((gap - x).abs().argmin()) for x in (-12, -6, -3, 0, 3, 6, 12)]
pd.DataFrame(
    {
        "score gap": [f"{gap[k]:+.0f}" for k in shown],
        "weight of 0": [f"{alpha[k]:.6f}" for k in shown],
        "loss (nats)": [f"{losses[k]:.3f}" for k in shown],
        "score gradient, size": [f"{slope[k].abs():.2g}" for k in shown],
        "over alpha (1 - alpha)": [
            f"{slope[k].abs() / (alpha[k] * (1 - alpha[k])):.3f}" for k in shown
        ],
        "value gradient of 0": [f"{value_norms[k, 0]:.2g}" for k in shown],
        "value gradient of 1": [f"{value_norms[k, 1]:.2g}" for k in shown],
        "upstream, size": [f"{u[k].norm():.3f}" for k in shown],
    }
).set_index("score gap")

# %% [markdown]
# The figure is the same sweep. Look at the left end. All weight is on the position that misleads and the loss is at
# its highest, yet the score gradient is all but gone. The gradient of the value *that is attended to* is at its
# largest at the same place: the content at position 1 changes while the routing stays. (The value that nobody attends
# to learns nothing either: its gradient falls with its weight.)

# %%
ends = slope.abs()[[0, -1]] / slope.abs().max()
assert ends.max() < 1e-3
attended = torch.stack([value_norms[0, 1] / u[0].norm(), value_norms[-1, 0] / u[-1].norm()])
assert (attended - 1).abs().max() < 1e-4
print(f"At the ends the score gradient is {ends[0]:.1e} and {ends[1]:.1e} of its maximum,")
print(
    f"and the gradient of the attended value is {attended[0]:.4f} and {attended[1]:.4f} of the"
    " upstream gradient."
)
figure, data = plots.saturation(gap, alpha, slope, value_norms)
figures.save(figure, "01_saturation", data, results)

# %% [markdown]
# How long is the way back if only the scores move, in unit steps? Here $u = (1 - p_0)\,(-2, 2)^\top$ with $p_0$ the
# probability of class 0, so $b_0 - b_1 = -4 (1 - p_0)$. L1 moves the two scores by equal and opposite amounts, and each
# step adds $8\, \alpha_0 (1 - \alpha_0)(1 - p_0)$ to the gap. Far to the left $p_0$ is constant and $\alpha_0 \approx e^{s_0 - s_1}$, so that is
# about $7\, e^{D}$ with $D = s_0 - s_1$. As a flow, $dD/dt = 7\, e^D$ means $e^{-D} \,dD = 7\, dt$, so from $D = -12$ up to
# $D \approx 0$ it takes about $(e^{12} - 1)/7 \approx e^{12}/7$ steps.

# %%
current, taken = -12.0, 0
while current < 0:
    alpha_0 = 1 / (1 + math.exp(-current))
    missing = 1 / (
        1 + math.exp(2 * (2 * alpha_0 - 1))
    )  # 1 - p_0, since the logits are 2 alpha_0 - 1 and its negative
    current += 8 * alpha_0 * (1 - alpha_0) * missing
    taken += 1
assert 0.9 < taken / (math.exp(12) / 7) < 1.1
print(
    f"From a gap of -12, {taken} unit steps on the scores alone; e^12 / 7 is"
    f" {math.exp(12) / 7:.0f}."
)

# %% [markdown]
# ## What was shown, and what was not
#
# - **Shown:** L1 follows from the definitions by the chain rule alone. It was confirmed without tolerance on symbols,
#   to rounding by autograd, and with the expected order by finite differences. Nothing in it depends on how the
#   scores or the values were made.
# - **Shown, with a qualification:** "a negative advantage gains attention" is exact for scores and odds, not for
#   every weight.
# - **Not shown:** that training follows these arrows. A real step moves $W_Q$ and $W_K$, which all scores share, so
#   one score need not move along its own gradient; and values move at the same time. The next notebooks take those
#   up.
# - **Not special to attention:** L1 is the gradient of any softmax-weighted mean. What makes it *attention's* law is
#   the meaning of $b_{ij}$ under cross-entropy. The symbolic check covers one small size; the derivation covers all.

# %%
checks = {
    "symbolic": symbolic_error,
    "autograd": autograd_error,
    "central differences": difference_error,
}
without_mean_error, wrong_sign_error = relative_error(without_mean, exact), relative_error(
    wrong_sign, exact
)
assert without_mean_error > 0.01 and wrong_sign_error > 0.01
print(f"Control against autograd: L1 without the mean misses by {without_mean_error:.2f},")
print(f"with the wrong sign by {wrong_sign_error:.2f} of the largest entry.")

largest = max(checks.values())
rows = [
    claims.claim(
        "L1",
        "The score gradient is the weight times the advantage: dL/ds_ij = alpha_ij (b_ij -"
        " E_alpha_i[b])",
        ours=largest,
        unit="relative error",
        judgement=claims.judge_identity(checks, 1e-6),
        reasons={
            claims.REPRODUCED: (
                "The symbolic difference is exactly zero, autograd agrees to rounding, and the"
                f" largest error, {largest:.0e}, is the truncation of the finite differences."
            ),
            claims.NOT_REPRODUCED: (
                f"At least one of three independent checks misses the law, by {largest:.1e}."
            ),
        },
        control=(
            "the law without the mean and the law with the wrong sign would miss autograd: "
            f"they do, by {without_mean_error:.2f} and {wrong_sign_error:.2f} of its largest entry"
        ),
        notebook="01_advantage_routing",
        figure="01_routing",
        tolerance=1e-8,
        seeds=[seed],
    ),
    claims.claim(
        "L1-sign",
        "Under descent a position whose advantage is negative gains attention",
        ours=float(gaining_share.mean()),
        unit="fraction of such positions whose weight grows",
        interval=claims.mean_interval(gaining_share, "random sequences"),
        seeds=[seed],
        figure="01_routing",
        judgement=claims.judge_conditions(
            {
                "every such position gains score": bool(
                    ((moved_scores - trace.scores)[helpful] > 0).all()
                )
            },
            {"every such position gains weight": bool((gaining_share == 1).all() and rate[1] > 0)},
        ),
        reasons={
            claims.REPRODUCED: "Scores and weights of all such positions grow.",
            claims.QUALIFIED: (
                "Exact for scores, and for odds against positions whose advantage is not negative; "
                "a weight can still fall, to a position that helps more."
            ),
            claims.NOT_REPRODUCED: "Some such position loses score.",
        },
        control=(
            "three positions with weights 0.5, 0.4, 0.1 and advantages -1, -0.1, 5.4, built to"
            f" refute it for weights: the second one's weight changes at the rate {rate[1]:+.4f}"
        ),
        notebook="01_advantage_routing",
        tolerance=1e-3,
    ),
]
claims.record(rows, "01_advantage_routing", results)
Markdown(claims.markdown(rows))
