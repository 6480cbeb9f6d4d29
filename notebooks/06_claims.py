# %% [markdown]
# # The ledger of claims
#
# **What it shows.** Every claim of the paper that the notebooks before this one put to a test, with the paper's value,
# ours, the interval over seeds, and a verdict that a stated rule computed.
#
# **For whom.** Readers who want the result first, and referees who want the rule and the control behind each verdict.
#
# **What to know first.** Nothing; each row names the notebook that argues it.
#
# **Time.** About 3 seconds on two cores.

# %%
import pandas as pd
from IPython.display import Markdown

from attention_dynamics import claims, parameters, paths

# %% tags=["parameters"]
records: str = ""  # folder with the other notebooks' records; empty: the project's figures/
results: str = "results"  # folder for the ledger

# %%
records, results = parameters.checked(records=records, results=results)
ledger = claims.read(records or paths.figures())
argued = {row.notebook for row in ledger}
if not records:
    others = {path.stem for path in paths.notebooks().glob("[0-9]*.py")} - {"06_claims"}
    assert argued == others, f"no records of {sorted(others - argued)}"

# %% [markdown]
# ## Verdicts
#
# A verdict is one of three words.
#
# * **reproduced**: the claim holds here, and its control did not explain it away.
# * **qualified**: it holds, but under a condition that the reason names, or because of something that the control also does.
# * **not reproduced**: it does not hold here.
#
# For a number that the paper prints, *qualified* says: not its value, though the seeds are the same, but one that as many other seeds
# could have given.
#
# The interval in the table is that of our value. What decides on a printed number is a wider one, the prediction interval for as many new seeds, which
# stands in its rule.
#
# A control is a run or a calculation that could have refuted the claim. Intervals are 95 % intervals over seeds; how each was made is
# in its record.

# %%
counts = (
    pd.Series([row.verdict for row in ledger]).value_counts().reindex(claims.VERDICTS, fill_value=0)
)
print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))

# %%
table = claims.markdown(ledger)
Markdown(table)

# %% [markdown]
# ## Rules and controls
#
# What decided each verdict, and what could have turned it.

# %%
lines = []
for row in ledger:
    figure = f", figure `{row.figure}`" if row.figure else ""
    interval = f" *Interval:* {row.interval.method}." if row.interval else ""
    lines.append(
        f"* **{row.id}** (`{row.notebook}`{figure}). *Rule:* {row.rule}. *Control:*"
        f" {row.control}.{interval}"
    )
Markdown("\n".join(lines))

# %% [markdown]
# The whole ledger, as one table for reading (`claims.md`) and one for machines (`claims.json`), is written beside the figures.

# %%
claims.write_ledger(ledger, results)

# %% [markdown]
# ## What was shown, and what was not
#
# The ledger collects; it argues nothing itself. A verdict holds for the setting of its notebook: toy sizes, one head, the training
# sequence. Claims of the paper that no row names have not been put to a test here.
