"""The learner in closed form: it remembers sums, never trains, and forgets exactly.

Read `AnalyticLearner.learn`, then `_solve`: what is remembered of every environment becomes one linear classifier.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from perdure import checkpoint as checkpoints
from perdure.alignment import COLDEST, WARMEST, Discriminant, Sureness, align, discriminant, shrunk_to_zero, softmax, sureness
from perdure.answers import InferredEnvironment, abstaining
from perdure.errors import CheckpointError, InputError, NotSolvableYet, UnknownEnvironment
from perdure.progress import Progress
from perdure.settings import checked_settings, settings_from_json, settings_to_json
from perdure.statistics import Moments
from perdure.streams import Environment, Label, Labels, Rows, as_label, as_labels, as_rows
from perdure.waiting import Half, Queued, kind_of, only_row, refuse_misfits, refuse_one_class, refuse_one_row

log = logging.getLogger("perdure")
BLOCK = 4096
"""Rows that are answered at once."""
SAME = 1e-10
"""Rows of length one whose mean squared distance from their mean is at most this are one row."""
NEXT_TO_NOTHING = 1e-9
"""What a support row counts at least beside a query row."""
PRIORS = (1e-6, 1e6)
"""Beyond these a covariance is as good as singular, or as good as the identity."""
_MAY_BE_ZERO = frozenset({"support_weight", "spread", "rounds", "guard"})


@dataclass(frozen=True, kw_only=True)
class AnalyticConfig:
    """Every choice of the analytic learner. docs/analytic.md says what each is worth, and how the defaults were chosen."""

    power: float = 1.0
    """Features are brought to sign(x)·|x|^power and then to length one."""
    prior: float = 0.5
    """Every covariance is shrunk as if so many rows a feature, alike in all directions, had been seen beside those that were."""
    rounds: int = 1
    """How often the alignment is fitted again to its own pseudo-labels."""
    neighbours: int = 5
    """Each query row believes what so many of its likes believe ..."""
    spread: float = 0.8
    """... this much more than what it is said to be by itself; below 1."""
    guard: float = 0.1
    """The source-only answer is kept where the adapted one accounts for less of the query's scatter by more than this part."""
    support_weight: float = 0.2
    """What a support row, moved to where the query lies, counts in its class's mean beside a query row."""
    unknown_temperature: float = 0.3
    """Where the environment is unknown, the part that is left of the temperature at which each is calibrated by itself: there
    are more classes to share the probability. The more of all classes an environment holds, the less it is reduced."""

    def __post_init__(self) -> None:
        checked_settings(self, may_be_zero=_MAY_BE_ZERO)
        for name in ("power", "support_weight", "guard", "unknown_temperature"):
            if getattr(self, name) > 1:
                raise InputError(f"`{name}` must be at most 1, got {getattr(self, name)}.")
        if not PRIORS[0] <= self.prior <= PRIORS[1]:
            raise InputError(f"`prior` must be from {PRIORS[0]:g} to {PRIORS[1]:g}, got {self.prior}.")
        if self.spread >= 1:
            raise InputError(f"`spread` must be below 1, got {self.spread}.")


@dataclass(frozen=True)
class Adapted:
    """What `learn` did."""

    environment: str
    adapted: bool
    """Whether the guard let the adaptation pass; otherwise the query is answered as by the source alone."""
    explained: tuple[float, float]
    """What decided: which part of the query's scatter its classes account for, by the source-only and by the adapted answer."""
    seconds: float
    returning: list[Label]
    """Classes that an earlier environment had already: each stays one class, learned from both."""


@dataclass(frozen=True, eq=False)
class Remembered:
    """All that is kept of an environment: sums over its support and its query, and which way the guard decided."""

    name: str
    classes: list[Label]
    support: Moments
    query: Moments
    shift: Float[np.ndarray, " features"]
    """From where the support lies to where the query does."""
    noise: float
    """Expected squared length of what chance adds to that."""
    adapted: bool
    explained: tuple[float, float]
    domain: str | None
    sureness: Sureness
    """How sure its own probabilities may be, by what was seen without labels."""

    @property
    def within(self) -> Float[np.ndarray, "features features"]:
        """Scatter within the classes of each stream."""
        scatter: NDArray[np.float64] = self.support.within + self.query.within
        return scatter

    def means(self, shift: Float[np.ndarray, " features"], support_weight: float) -> Float[np.ndarray, "own features"]:
        """Of each class where the query lies; support rows, moved by `shift`, count `support_weight` of a query row."""
        support, query = self.support, self.query
        support_weight = max(support_weight, NEXT_TO_NOTHING)  # of a class that no query row seems to have
        moved = support.sums + support.weight[:, None] * shift
        weight = support_weight * support.weight + query.weight
        means: NDArray[np.float64] = (support_weight * moved + query.sums) / weight[:, None]
        return means

    @property
    def nbytes(self) -> int:
        """What it takes to keep."""
        return self.support.nbytes + self.query.nbytes + self.shift.nbytes


@dataclass(eq=False)
class Arriving:
    """An environment of which more is expected: sums of its support so far, rows of its query so far."""

    classes: list[Label]
    support: Moments | None
    query: list[Rows]
    domain: str | None = None
    whole: frozenset[str] = frozenset()
    """The halves of which no more is to come."""
    lost: bool = False
    """Whether query rows were here when the learner was saved; data are never saved."""

    @property
    def missing(self) -> Half:
        """What it cannot be learned without; the query, where only more of it is to come."""
        return "support" if self.support is None else "query"

    @property
    def awaited(self) -> str:
        """The same in words."""
        return "last part" if self.support is not None and self.query else self.missing


@dataclass(frozen=True, eq=False)
class Solved:
    """The one classifier: an LDA with a mean for each class of each environment."""

    rule: Discriminant
    environment: Int[np.ndarray, " cells"]
    """Of each mean, by its place in `AnalyticLearner.environments`."""
    label: Int[np.ndarray, " cells"]
    """Of each mean, by its place in `AnalyticLearner.classes`."""


class AnalyticLearner:
    """Learns environments in any order and answers queries of all of them; all it keeps are sums.

    >>> import numpy as np, perdure
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 40)
    >>> x = rng.normal(size=(80, 8)) + 3 * (y == "dog")[:, None]
    >>> learner = perdure.AnalyticLearner()
    >>> learned = learner.learn(perdure.Environment("clinic", perdure.Support(x, y), perdure.Query(x + 0.5)))
    >>> learner.environments, learner.classes, learned.adapted
    (['clinic'], ['cat', 'dog'], True)
    """

    def __init__(self, config: AnalyticConfig | None = None) -> None:
        self.config = AnalyticConfig() if config is None else config
        self._remembered: dict[str, Remembered] = {}
        self._arriving: dict[str, Arriving] = {}
        self._row_shape: tuple[int, ...] | None = None
        self._within: Float[np.ndarray, "features features"] | None = None
        """Sum over all environments, so that one more costs the same however many there are."""
        self._solved: Solved | None = None

    # -- learning an environment ------------------------------------------------------------------------------------------

    def learn(self, environment: Environment, *, more: bool = False, progress: Progress = None) -> Adapted | Queued:
        """Learn one environment, or keep what arrived of it until the rest does.

        Support and query may come in either order and in chunks: with `more` nothing is adapted yet, because more of the same
        name follows. Of the support only sums are kept; rows of a query wait in memory, since they get their classes together.
        """
        name, began = environment.name, time.perf_counter()
        self._check(environment)
        arriving = self._joined(environment, more=more)
        self._check_halves(name, arriving, all_here=not more and arriving.support is not None and bool(arriving.query))
        if more or arriving.support is None or not arriving.query:
            self._arriving[name] = arriving
            self._row_shape = next(half.x.shape[1:] for half in (environment.support, environment.query) if half is not None)
            return Queued(name, arriving.missing)
        query = np.concatenate(arriving.query)
        known = {label for each in self._remembered.values() for label in each.classes}
        returning = [label for label in arriving.classes if label in known]
        if returning:
            log.info("%s: classes %s were seen before; each stays one class, learned from both.", name, returning)

        lone = _lone(arriving.classes, arriving.support)
        if lone:
            log.warning(
                "%s: in each of the classes %s all support rows point one way, be it because there is only one: brought to "
                "length one they are the same, and the sum that is kept of the class is then such a row. Where no row may be "
                "kept, give more that point elsewhere.",
                name,
                lone,
            )

        config = self.config
        aligned = align(
            arriving.support,
            query,
            prior=config.prior,
            neighbours=config.neighbours,
            spread=config.spread,
            rounds=config.rounds,
            guard=config.guard,
        )
        if not aligned.adapted:
            log.warning("%s: adapting would not have helped; its queries are answered as by the source alone.", name)
        self._remember(
            Remembered(
                name,
                arriving.classes,
                arriving.support,
                Moments.of(query, aligned.beliefs),
                aligned.shift,
                aligned.noise,
                aligned.adapted,
                aligned.explained,
                arriving.domain,
                sureness(
                    arriving.support,
                    query,
                    aligned,
                    prior=config.prior,
                    support_weight=max(config.support_weight, NEXT_TO_NOTHING),
                ),
            )
        )
        self._arriving.pop(name, None)
        return Adapted(name, aligned.adapted, aligned.explained, time.perf_counter() - began, returning)

    def _check(self, environment: Environment) -> None:
        """Refuse, before anything changes, what could not be learned."""
        name = environment.name
        if name in self._remembered:
            raise InputError(f'Environment "{name}" is learned already. Give the new data a new name, or forget("{name}") first.')
        for half, what in ((environment.support, "support"), (environment.query, "query")):
            if half is not None and half.x.ndim != 2:
                raise InputError(f'Rows of the {what} of "{name}" have shape {half.x.shape[1:]}; each must be a vector.')
        refuse_misfits(environment, self._row_shape, self._a_label())
        arriving = self._arriving.get(name)
        if arriving is not None and None not in (arriving.domain, environment.domain) and arriving.domain != environment.domain:
            raise InputError(
                f'"{name}" came with the domain "{arriving.domain}" before and comes with "{environment.domain}" now; '
                "a query comes from one. Give the same, or none."
            )
        for half, what in ((environment.support, "support"), (environment.query, "query")):
            if half is not None and arriving is not None and what in arriving.whole:
                raise InputError(
                    f'"{name}" already has a {what} and waits for its {arriving.awaited}. '
                    f'Give the {arriving.awaited}, or drop it with forget("{name}").'
                )
        if arriving is not None and arriving.lost and environment.query is None:
            raise InputError(
                f'The query of "{name}" arrived before this learner was saved, and data are never saved; give it again.'
            )

    def _check_halves(self, name: str, arriving: Arriving, *, all_here: bool) -> None:
        """Refuse a half that is whole and has too little in it."""
        support = arriving.support
        if support is not None and (all_here or "support" in arriving.whole):
            if support.spread <= SAME * support.rows:
                raise only_row(name, "support", round(support.rows))
            refuse_one_class(name, arriving.classes)
        if arriving.query and (all_here or "query" in arriving.whole):
            refuse_one_row(name, "query", np.concatenate(arriving.query))

    def _a_label(self) -> list[Label]:
        """One label that was given before, if any was: all are of its kind."""
        return next((classes[:1] for classes in self._all_classes() if classes), [])

    def _all_classes(self) -> Iterator[list[Label]]:
        """Of each environment, learned or waiting."""
        yield from (remembered.classes for remembered in self._remembered.values())
        yield from (arriving.classes for arriving in self._arriving.values())

    def _joined(self, environment: Environment, *, more: bool) -> Arriving:
        """What has arrived of it together with what arrives now."""
        before = self._arriving.get(environment.name) or Arriving([], None, [])
        classes, support, query = before.classes, before.support, list(before.query)
        if environment.support is not None:
            labels = environment.support.classes
            classes = sorted({*classes, *labels})
            belongs = np.eye(len(classes), dtype=np.float32)[np.searchsorted(np.array(classes), environment.support.y)]
            new = Moments.of(prepared(environment.support.x, self.config.power), belongs)
            support = new if support is None else new + support.at(_places(before.classes, classes), len(classes))
        if environment.query is not None:
            query.append(prepared(environment.query.x, self.config.power))
        now = {what for half, what in ((environment.support, "support"), (environment.query, "query")) if half is not None}
        whole = before.whole if more else before.whole | now
        return Arriving(classes, support, query, environment.domain or before.domain, whole)

    def _remember(self, remembered: Remembered) -> None:
        self._remembered[remembered.name] = remembered
        self._row_shape = (remembered.support.features,)
        if self._within is not None:
            self._within = self._within + remembered.within
        self._solved = None

    # -- the one classifier -----------------------------------------------------------------------------------------------

    def _solve(self) -> Solved:
        """All that is remembered as one linear classifier; solved when it is first asked."""
        if self._solved is None:
            each = list(self._remembered.values())
            if self._within is None:
                within = each[0].within
                for remembered in each[1:]:
                    within += remembered.within
                self._within = within
            rows = sum(remembered.support.rows + remembered.query.rows for remembered in each)
            shifts = self._shifts()
            means = np.concatenate([one.means(shifts[one.name], self.config.support_weight) for one in each])
            rule = discriminant(means, self._within, rows, self.config.prior)
            classes = self.classes
            self._solved = Solved(
                rule,
                np.repeat(np.arange(len(each)), [len(remembered.classes) for remembered in each]),
                np.concatenate([_places(remembered.classes, classes) for remembered in each]),
            )
        return self._solved

    def _shifts(self) -> dict[str, Float[np.ndarray, " features"]]:
        """Environment → from where its support lies to where its query does.

        Visits of one domain say it together: each is moved to their mean as far as chance alone may have kept it from there, so
        that visits from supports that lie elsewhere stay apart.
        """
        visits: dict[str, list[Remembered]] = {}
        for each in self._remembered.values():
            if each.adapted and each.domain is not None:
                visits.setdefault(each.domain, []).append(each)
        shifts = {name: each.shift for name, each in self._remembered.items()}
        for some in visits.values():
            together = np.average([each.shift for each in some], axis=0, weights=[each.query.rows for each in some])
            for each in some if len(some) > 1 else ():
                shifts[each.name] = together + shrunk_to_zero(each.shift - together, each.noise)
        return shifts

    def _log_odds(self, rows: Rows, temperature: float) -> Float[np.ndarray, "n cells"]:
        rule = self._solve().rule
        log_odds: NDArray[np.float32] = (prepared(rows, self.config.power) @ rule.weights + rule.offsets) / np.float32(
            temperature
        )
        return log_odds

    @property
    def _temperature(self) -> float:
        """Where the environment is unknown: that of all environments, less what more classes take of the probability."""
        each = self._remembered.values()
        share = float(np.mean([len(remembered.classes) for remembered in each])) / len(self.classes)
        together = float(np.exp(np.mean([np.log(remembered.sureness.temperature) for remembered in each])))
        return float(together * self.config.unknown_temperature ** (1 - share))

    # -- answering --------------------------------------------------------------------------------------------------------

    @property
    def environments(self) -> list[str]:
        """The learned environments, in the order they were learned."""
        return list(self._remembered)

    @property
    def classes(self) -> list[Label]:
        """Every class of a learned environment, sorted; the columns of `predict_proba`."""
        return sorted({label for each in self._remembered.values() for label in each.classes})

    @property
    def queued(self) -> dict[str, Half]:
        """Environments that wait, and what they wait for."""
        return {name: arriving.missing for name, arriving in self._arriving.items()}

    @property
    def adapted(self) -> dict[str, bool]:
        """Environment → whether the guard let its adaptation pass."""
        return {name: remembered.adapted for name, remembered in self._remembered.items()}

    @property
    def bytes_held(self) -> dict[str, int]:
        """What each environment costs to remember: d(d + 1) + 2k(d + 1) + d numbers of 8 bytes, for k classes of d features."""
        return {name: remembered.nbytes for name, remembered in self._remembered.items()}

    def predict(
        self, x: Any, environment: str | None = None, *, same_environment: bool = False, abstain_below: float | None = None
    ) -> Labels:
        """The class of each row; `None` instead of those whose probability is less than `abstain_below`."""
        proba = self.predict_proba(x, environment, same_environment=same_environment)
        return abstaining(np.array(self.classes), proba, abstain_below)

    def predict_proba(
        self, x: Any, environment: str | None = None, *, same_environment: bool = False
    ) -> Float[np.ndarray, "n classes"]:
        """Probability of each class: among the environment's, if it is given, else among all.

        `same_environment`: all rows come from one environment, which is not known; together they say which.
        """
        rows = self._checked_query(x)
        solved, each = self._solve(), self._remembered.values()
        if environment is not None:
            weights = np.array([remembered is self._of(environment) for remembered in each], dtype=np.float64)
        elif same_environment:
            weights = self._environment_of_all(rows)
        else:
            weights = np.ones(len(each))
        known = environment is not None or same_environment
        own = float(np.exp(sum(w * np.log(remembered.sureness.temperature) for w, remembered in zip(weights, each, strict=True))))
        with np.errstate(divide="ignore"):
            prior = np.log(weights).astype(np.float32)[solved.environment]
        member = _member(solved.label, len(self.classes))
        return self._in_blocks(rows, prior, member if known else self._doubted(member), own if known else self._temperature)

    def transform(self, x: Any, environment: str) -> Float[np.ndarray, "n features"]:
        """Features of rows of this environment, moved to where its support lies."""
        name, rows = self._of(environment).name, self._checked_query(x)
        moved: NDArray[np.float32] = prepared(rows, self.config.power) - self._shifts()[name].astype(np.float32)
        return moved

    def inferred_environment(self, x: Any) -> InferredEnvironment:
        """Which environment each row seems to come from, and how sure that is."""
        rows, solved = self._checked_query(x), self._solve()
        nothing = np.zeros(len(solved.label), dtype=np.float32)
        member = _member(solved.environment, len(self._remembered))
        probabilities = self._in_blocks(rows, nothing, member, self._temperature)
        best = probabilities.argmax(axis=1)
        return InferredEnvironment(np.array(self.environments)[best], probabilities.max(axis=1), probabilities)

    def _environment_of_all(self, rows: Rows) -> Float[np.ndarray, " environments"]:
        """How likely each environment is where all rows come from: their densities multiply."""
        solved, temperature = self._solve(), self._temperature
        evidence = np.zeros(len(self._remembered))
        for begin in range(0, len(rows), BLOCK):
            log_odds = self._log_odds(rows[begin : begin + BLOCK], temperature)
            for place in range(len(evidence)):
                own = log_odds[:, solved.environment == place]
                evidence[place] += float((torch.from_numpy(own).logsumexp(dim=1) - np.log(own.shape[1])).double().sum())
        likely: NDArray[np.float64] = np.exp(evidence - evidence.max())
        return likely / float(likely.sum())

    def _doubted(self, member: Float[np.ndarray, "cells groups"]) -> Float[np.ndarray, "cells groups"]:
        """What a cell stands for, since its query rows may be of the environment's other classes.

        Among its own classes the temperature says how often that is so; among all, the classifier tells a row's environment and
        is then sure of a class that the alignment may have got wrong.
        """
        where = self._solve().environment
        each = list(self._remembered.values())
        wrong = np.array([1 - remembered.sureness.right for remembered in each], dtype=np.float32)
        others = np.array([len(remembered.classes) - 1 for remembered in each], dtype=np.float32)
        own = _member(where, len(each)).T @ member  # of each environment, all its cells together
        to_each = (wrong / others)[where][:, None]
        doubted: NDArray[np.float32] = (1 - wrong[where][:, None] - to_each) * member + to_each * own[where]
        return doubted

    def _in_blocks(
        self,
        rows: Rows,
        prior: Float[np.ndarray, " cells"],
        member: Float[np.ndarray, "cells groups"],
        temperature: float,
    ) -> Float[np.ndarray, "n groups"]:
        """Probabilities of the cells, given to the groups that each belongs to."""
        blocks = (rows[begin : begin + BLOCK] for begin in range(0, len(rows), BLOCK))
        answers: NDArray[np.float32] = np.concatenate(
            [softmax(self._log_odds(block, temperature) + prior) @ member for block in blocks]
        )
        return answers.clip(max=1)  # a sum of parts may round above it

    def _of(self, environment: str) -> Remembered:
        if environment in self._remembered:
            return self._remembered[environment]
        if environment in self._arriving:
            awaited = self._arriving[environment].awaited
            raise NotSolvableYet(
                f'"{environment}" waits for its {awaited}; it is queued. Add the {awaited} with `learn(...)` '
                f'or drop it with `forget("{environment}")`.'
            )
        raise UnknownEnvironment(f'No environment is called "{environment}". Learned so far: {self.environments}.')

    def _checked_query(self, x: Any) -> Rows:
        if not self._remembered:
            waiting = f" Waiting: {self.queued}." if self._arriving else ""
            raise NotSolvableYet(f"Nothing has been learned yet. Give support and query to `learn(...)`.{waiting}")
        rows = as_rows(x, "query")
        if rows.shape[1:] != self._row_shape:
            raise InputError(f"Rows of the query have shape {rows.shape[1:]}, what was learned has {self._row_shape}.")
        return rows

    # -- forgetting, merging, saving, loading -----------------------------------------------------------------------------

    def forget(self, name: str) -> None:
        """Drop an environment, learned or waiting: what is left is, bit for bit, as if it had never been there."""
        if self._arriving.pop(name, None) is None:
            self._of(name)
            del self._remembered[name]
            self._within = self._solved = None  # the next answer adds up what is left: subtracting would leave rounding behind
        if not self._remembered and not self._arriving:
            self._row_shape = None

    @classmethod
    def merge(cls, *learners: AnalyticLearner) -> AnalyticLearner:
        """One learner that has learned what each of these has; they stay as they are."""
        if not learners:
            raise InputError("`merge` needs at least one learner.")
        merged = cls(learners[0].config)
        for learner in learners:
            if learner.config != merged.config:
                raise InputError(f"Learners of different configurations do not add up: {learner.config} and {merged.config}.")
            shapes = {shape for shape in (merged._row_shape, learner._row_shape) if shape is not None}
            if len(shapes) > 1:
                raise InputError(f"Learners of rows of different shapes do not add up: {sorted(shapes)}.")
            both = {*merged._remembered, *merged._arriving} & {*learner._remembered, *learner._arriving}
            if both:
                raise InputError(f"Two of these learners have environments called {sorted(both)}; forget them in one of the two.")
            kinds = {kind_of(label) for one in (merged, learner) for label in one._a_label()}
            if len(kinds) > 1:
                raise InputError(
                    f"Learners of labels that are {' and '.join(sorted(kinds))} do not add up; use one kind throughout."
                )
            merged._remembered |= learner._remembered
            merged._arriving |= {name: replace(arriving) for name, arriving in learner._arriving.items()}
            merged._row_shape = learner._row_shape or merged._row_shape
        return merged

    def save(self, path: str | Path) -> None:
        """Write `tensors.safetensors` and `state.json` into the folder `path`, atomically. Sums only; waiting rows are not."""
        tensors: dict[str, torch.Tensor] = {}
        for i, remembered in enumerate(self._remembered.values()):
            tensors |= _tensors(f"environments.{i}.support", remembered.support)
            tensors |= _tensors(f"environments.{i}.query", remembered.query)
            tensors[f"environments.{i}.shift"] = torch.from_numpy(remembered.shift)
        for i, arriving in enumerate(self._arriving.values()):
            if arriving.support is not None:
                tensors |= _tensors(f"arriving.{i}.support", arriving.support)
        state = {
            "learner": type(self).__name__,
            "config": settings_to_json(self.config),
            "row_shape": self._row_shape,
            "environments": [
                {
                    "name": each.name,
                    "classes": each.classes,
                    "domain": each.domain,
                    "right": each.sureness.right,
                    "temperature": each.sureness.temperature,
                    "noise": each.noise,
                    "adapted": each.adapted,
                    "explained": each.explained,
                }
                for each in self._remembered.values()
            ],
            "arriving": [
                {
                    "name": name,
                    "classes": each.classes,
                    "had_query": bool(each.query) or each.lost,
                    "whole": sorted(each.whole - {"query"}),  # rows of a query are not saved, so it is to come again
                    "domain": each.domain,
                }
                for name, each in self._arriving.items()
            ],
        }
        checkpoints.save(path, tensors, state)

    @classmethod
    def load(cls, path: str | Path) -> AnalyticLearner:
        """The learner that was saved there."""
        tensors, state = checkpoints.load(path)
        where = str(path)
        if state.get("learner") != cls.__name__:
            raise CheckpointError(f"{where} holds a {state.get('learner')!r}, not a {cls.__name__}. Load it with its own class.")
        learner = cls(settings_from_json(AnalyticConfig, state.get("config"), where))
        try:
            learner._restore(checkpoints.Folder(tensors), state)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
            raise CheckpointError(
                f"{where} is damaged ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}). Restore it from a copy."
            ) from error
        return learner

    def _restore(self, tensors: checkpoints.Folder, state: dict[str, Any]) -> None:
        """All that `save` wrote, each part checked against the others."""
        if state["row_shape"] is not None:
            self._row_shape = tuple(checkpoints.whole(size) for size in state["row_shape"])
        entries = [*state["environments"], *state["arriving"]]
        names = [checkpoints.word(entry["name"]) for entry in entries]
        if len(set(names)) < len(names) or (names and (self._row_shape is None or len(self._row_shape) != 1)):
            raise ValueError(f"environments {names} of rows of shape {self._row_shape}")
        features = self._row_shape[0] if self._row_shape else 0
        expected = set()
        for i, entry in enumerate(state["environments"]):
            folder, classes = tensors.folder(f"environments.{i}"), _labels(entry["classes"])
            shift = folder.numbers("shift", features, dtype=torch.float64).numpy()
            source, adapted = (float(part) for part in entry["explained"])
            if len(classes) < 2 or not np.isfinite([*shift, source, adapted]).all():
                raise ValueError(f"environment {entry['name']!r} was not saved whole")
            self._remembered[entry["name"]] = Remembered(
                entry["name"],
                classes,
                _moments(folder.folder("support"), len(classes), features),
                _moments(folder.folder("query"), len(classes), features),
                shift,
                _noise(entry["noise"]),
                _truth(entry["adapted"]),
                (source, adapted),
                _domain(entry["domain"]),
                Sureness(_part(entry["right"]), _temperature(entry["temperature"])),
            )
            expected |= {f"environments.{i}.{half}.{part}" for half in ("support", "query") for part in _PARTS}
            expected.add(f"environments.{i}.shift")
        for i, entry in enumerate(state["arriving"]):
            classes, folder = _labels(entry["classes"]), tensors.folder(f"arriving.{i}.support")
            support = _moments(folder, len(classes), features) if classes else None
            self._arriving[entry["name"]] = Arriving(
                classes,
                support,
                [],
                _domain(entry["domain"]),
                whole=frozenset(entry["whole"]),
                lost=_truth(entry["had_query"]),
            )
            if not self._arriving[entry["name"]].whole <= {"support"}:
                raise ValueError(f"halves {entry['whole']!r} of environment {entry['name']!r}")
            expected |= {f"arriving.{i}.support.{part}" for part in _PARTS if classes}
        if expected != tensors.keys():
            raise ValueError(f"it does not say what {min(expected ^ tensors.keys())} is of")
        if any((each.support.weight == 0).any() for each in self._remembered.values()):
            raise ValueError("a class without support")
        if len({kind_of(label) for classes in self._all_classes() for label in classes}) > 1:
            raise ValueError("labels of two kinds")
        if self._remembered:
            self._solve()  # sums of no rows have no solution; and it is wanted anyway


def _member(group: Int[np.ndarray, " cells"], groups: int) -> Float[np.ndarray, "cells groups"]:
    """1 where a cell belongs to a group."""
    member = np.zeros((len(group), groups), dtype=np.float32)
    member[np.arange(len(group)), group] = 1
    return member


def prepared(x: Rows, power: float) -> Rows:
    """Features to a power that makes them less skewed, brought to length one."""
    largest = np.abs(x).max(axis=1, keepdims=True, initial=0)  # first, so that no square is too large or too small for float32
    x = x / np.maximum(largest, np.finfo(np.float32).tiny)
    powered = np.sign(x) * np.abs(x) ** np.float32(power)
    length = np.linalg.norm(powered, axis=1, keepdims=True)
    rows: Rows = powered / np.maximum(length, np.finfo(np.float32).tiny)
    return rows


_PARTS = ("weight", "sums", "second")


def _tensors(name: str, moments: Moments) -> dict[str, torch.Tensor]:
    return {f"{name}.{part}": torch.from_numpy(getattr(moments, part)) for part in _PARTS}


def _moments(tensors: checkpoints.Folder, classes: int, features: int) -> Moments:
    shapes = {"weight": (classes,), "sums": (classes, features), "second": (features * (features + 1) // 2,)}
    parts = [tensors.numbers(part, *shape, dtype=torch.float64).numpy() for part, shape in shapes.items()]
    if not all(np.isfinite(part).all() for part in parts) or (parts[0] < 0).any():
        raise ValueError("sums that are not finite, or of negative weight")
    return Moments(*parts)


def _labels(values: Any) -> list[Label]:
    """Sorted labels, as JSON should hold them."""
    found = [as_label(label) for label in as_labels(np.array(values, dtype=object))] if values else []
    if found != sorted(set(found)):
        raise ValueError(f"expected sorted labels, each once, got {found}")
    return found


def _lone(classes: list[Label], support: Moments) -> list[Label]:
    """Classes whose rows all point one way, be it because there is one."""
    each = zip(classes, support.sums, support.weight, strict=True)
    return [label for label, total, rows in each if _point_one_way(total, float(rows))]


def _point_one_way(total: Float[np.ndarray, " features"], rows: float) -> bool:
    """Whether so many rows with this sum all point one way: each has length one, so that only then the sum is as long as many."""
    return float(np.linalg.norm(total)) > (1 - 3e-7) * rows


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"expected true or false, got {value!r}")
    return value


def _temperature(value: Any) -> float:
    if type(value) is not float or not COLDEST <= value <= WARMEST:
        raise ValueError(f"expected a temperature from {COLDEST} to {WARMEST}, got {value!r}")
    return value


def _part(value: Any) -> float:
    if type(value) is not float or not 0 <= value <= 1:
        raise ValueError(f"expected a number from 0 to 1, got {value!r}")
    return value


def _noise(value: Any) -> float:
    if type(value) is not float or not 0 <= value < np.inf:
        raise ValueError(f"expected a squared length, got {value!r}")
    return value


def _domain(value: Any) -> str | None:
    return None if value is None else checkpoints.word(value)


def _places(some: Iterable[Label], among: list[Label]) -> NDArray[np.intp]:
    """Where each of these stands among the others."""
    place = {label: i for i, label in enumerate(among)}
    return np.array([place[label] for label in some], dtype=np.intp)
