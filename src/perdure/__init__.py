"""perdure: learn from labels in one place, answer queries from everywhere they drift to, keep no data."""

from perdure.analytic import Adapted, AnalyticConfig, AnalyticLearner
from perdure.answers import InferredEnvironment
from perdure.errors import CheckpointError, InputError, NotSolvableYet, PerdureError, UnknownEnvironment
from perdure.streams import Answers, Environment, Query, Scenario, Support
from perdure.variational import (
    Learned,
    Losses,
    VariationalConfig,
    VariationalLearner,
    baseline_2,
    baseline_3,
    generative_replay,
    memory_replay,
    naive_baseline,
    noise_replay,
    optimal_baseline,
)
from perdure.waiting import Queued

__all__ = [
    "Adapted",
    "AnalyticConfig",
    "AnalyticLearner",
    "Answers",
    "CheckpointError",
    "Environment",
    "InferredEnvironment",
    "InputError",
    "Learned",
    "Losses",
    "NotSolvableYet",
    "PerdureError",
    "Query",
    "Queued",
    "Scenario",
    "Support",
    "UnknownEnvironment",
    "VariationalConfig",
    "VariationalLearner",
    "baseline_2",
    "baseline_3",
    "generative_replay",
    "memory_replay",
    "naive_baseline",
    "noise_replay",
    "optimal_baseline",
]
__version__ = "0.1.0"
