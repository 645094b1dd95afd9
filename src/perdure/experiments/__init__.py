"""The paper's methods and its lower bounds on a scenario, scored under every protocol."""

from perdure.experiments.lower_bounds import SupportOnly, lda, nearest_class_mean, source_only
from perdure.experiments.runner import PROTOCOLS, Protocol, Run, run

__all__ = ["PROTOCOLS", "Protocol", "Run", "SupportOnly", "lda", "nearest_class_mean", "run", "source_only"]
