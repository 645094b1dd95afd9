"""The analytic learner: errors among the rows it answers, when it leaves the least sure ones unanswered."""

from collections.abc import Mapping

from perdure.experiments.ledger import Place
from perdure.experiments.methods import ANALYTIC
from perdure.report.coverage import CoverageFigure
from perdure.scenarios import office31, office_home

NAME = "coverage-risk"
QUICK_PAIRS = {"Office-31": (("D", "A"), ("A", "W"))}
SOURCES = {"Office-31": "office31.tasks", "Office-Home": "office_home.tasks"}


def figure(pairs: Mapping[str, tuple[tuple[str, str], ...]]) -> CoverageFigure:
    """The figure for some of the pairs; its runs are those of `office31-tasks` and `office-home-tasks`."""
    return CoverageFigure(
        NAME,
        "Unsure rows left unanswered: coverage and risk of the analytic learner",
        ANALYTIC["analytic learner"],
        {group: [Place(SOURCES[group], pair) for pair in some] for group, some in pairs.items()},
        notes=(
            "tasks drift, all pairs of domains; frozen ResNet-50 features; closed form, the same defaults everywhere",
            "transductive: the queries that were adapted to; inductive: the half of each query that was kept aside",
            "rows of the same confidence are answered together, so that at least as many are answered as a column says",
            "a mark is the mean of a threshold: it answers more where the learner is surer, and so lies beside the mean curve",
            "labels of queries score and choose nothing, no threshold either",
        ),
    )


FULL = figure({"Office-31": office31.PAIRS, "Office-Home": office_home.PAIRS})
QUICK = figure(QUICK_PAIRS)
