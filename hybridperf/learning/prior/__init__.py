"""What measured GPUs teach about one nobody measured yet: a prior per family of ops, and its
adaptation to a few rows.

prior = train_family({"a100": (rows, time_s), ...})
adapted = adapt(prior, rows_of_a_new_device, time_s)
adapted.predict(rows).log_s
"""

from hybridperf.learning.prior.adapted import Adapted, Predicted, adapt
from hybridperf.learning.prior.family import FamilyPrior, nobody, train_family, uninformed
from hybridperf.learning.prior.rows import FamilyRows, concatenate

__all__ = [
    "Adapted", "FamilyPrior", "FamilyRows", "Predicted", "adapt", "concatenate", "nobody",
    "train_family", "uninformed",
]  # fmt: skip
