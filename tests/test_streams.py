"""What arrives is checked once, and what cannot be used is refused in one sentence that says what to do."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch

from perdure.errors import InputError, PerdureError
from perdure.streams import Answers, Environment, Query, Scenario, Support, as_label, as_labels, as_rows

ROWS = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)


def refused(sentence: str) -> Any:
    return pytest.raises(InputError, match="^" + re.escape(sentence))


# Rows


@pytest.mark.parametrize(
    "x",
    [
        [[1, 2], [3, 4]],
        ((1.0, 2.0), (3.0, 4.0)),
        ROWS,
        ROWS.astype(np.float64),
        ROWS.astype(np.float16),
        ROWS.astype(np.int8),
        ROWS.astype(np.uint16),
        ROWS.astype(object),
        np.asfortranarray(ROWS),
        torch.tensor(ROWS),
        torch.tensor(ROWS, dtype=torch.float64, requires_grad=True),
        torch.tensor(ROWS, dtype=torch.bfloat16),
        torch.tensor(ROWS, dtype=torch.int32),
    ],
    ids=str,
)
def test_rows_of_any_numeric_kind_become_float32_rows(x: Any) -> None:
    rows = as_rows(x, "query")
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, ROWS)


def test_booleans_count_as_zero_and_one() -> None:
    np.testing.assert_array_equal(as_rows([[True, False]], "query"), [[1.0, 0.0]])


def test_rows_of_pictures_keep_their_shape() -> None:
    assert as_rows(np.zeros((5, 3, 8, 8), np.uint8), "query").shape == (5, 3, 8, 8)


def test_float32_rows_are_not_copied() -> None:
    given = ROWS.copy()
    assert np.shares_memory(Query(given).x, given)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_with_nan_or_infinity_are_counted_and_the_first_is_named(bad: float) -> None:
    x = np.zeros((5, 3))
    x[2, 1] = x[4, 0] = x[4, 1] = bad
    with refused("The support holds NaN or infinite values in 2 of 5 rows (the first is row 2); drop or impute them."):
        Support(x, [0, 1, 0, 1, 0])


def test_nan_in_a_picture_is_found() -> None:
    x = np.zeros((3, 2, 2))
    x[1, 0, 1] = np.nan
    with refused("The query holds NaN or infinite values in 1 of 3 rows (the first is row 1)"):
        Query(x)


def test_a_missing_value_among_objects_is_found() -> None:
    with refused("The query holds NaN or infinite values in 1 of 2 rows (the first is row 1)"):
        Query([[1.0, 2.0], [None, 4.0]])


def test_a_number_too_large_for_float32_is_not_taken_for_finite() -> None:
    with refused("The query holds NaN or infinite values in 1 of 1 rows"):
        Query([[1e300]])


@pytest.mark.parametrize(("x", "shape"), [([1.0, 2.0], "(2,)"), (3.0, "()"), ([], "(0,)")])
def test_a_vector_is_refused_with_both_ways_to_make_it_rows(x: Any, shape: str) -> None:
    sentence = (
        f"The query must have one row an example, got shape {shape}; "
        "use x.reshape(1, -1) for one example or x.reshape(-1, 1) for one feature."
    )
    with refused(sentence):
        Query(x)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.zeros((0, 3)), "The query is empty: got shape (0, 3); give at least one row."),
        (np.zeros((3, 0)), "The query has no features: got shape (3, 0)."),
        (np.zeros((3, 2, 0)), "The query has no features: got shape (3, 2, 0)."),
        ([["red", "blue"]], "The query must be numbers, got dtype <U4; encode text and categories first."),
        (np.array([["red", 1.0]], dtype=object), "The query must be numbers, got dtype object; encode text"),
        (np.array([[1 + 2j]]), "The query must be numbers, got dtype complex128; encode text"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "The query must be numbers, got dtype datetime64[D]; encode text"),
        ([[1.0, 2.0], [3.0]], "Expected rows of equal length, got list: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_that_cannot_be_used_are_refused_with_the_reason(x: Any, sentence: str) -> None:
    with refused(sentence):
        Query(x)


# Labels


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (["b", "a"], np.array(["b", "a"])),
        (np.array(["b", "a"], dtype=object), np.array(["b", "a"])),
        ([7, -3], np.array([7, -3])),
        (np.array([7, -3], dtype=object), np.array([7, -3])),
        (np.array(["b", np.str_("a")], dtype=object), np.array(["b", "a"])),
        (np.array([7, True, np.int64(2), np.int32(3), np.bool_(False)], dtype=object), np.array([7, 1, 2, 3, 0])),
        (np.array([7, 250], dtype=np.uint8), np.array([7, 250])),
        ([7.0, -3.0], np.array([7, -3])),
        ([True, False], np.array([1, 0])),
        ([[7], [-3]], np.array([7, -3])),
        (torch.tensor([7, -3], dtype=torch.int16), np.array([7, -3])),
        (torch.tensor([7.0, -3.0]), np.array([7, -3])),
    ],
    ids=str,
)
def test_labels_become_strings_or_64_bit_integers(y: Any, expected: np.ndarray) -> None:
    labels = as_labels(y)
    assert labels.dtype.kind == expected.dtype.kind
    assert labels.dtype.kind == "U" or labels.dtype == np.int64
    np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        ([[1, 2]], "Labels must be one value a row, got shape (1, 2)."),
        (3, "Labels must be one value a row, got shape ()."),
        (["a", None], "Labels must be all strings or all integers and never missing, got NoneType, str."),
        (np.array(["a", 1], dtype=object), "Labels must be all strings or all integers and never missing, got int, str."),
        (np.array(["a", np.nan], dtype=object), "Labels must be all strings or all integers and never missing, got float, str."),
        ([1.0, np.nan], "Labels are classes: strings or integers, never missing; got fractions or NaN."),
        ([1.0, np.inf], "Labels are classes: strings or integers, never missing; got fractions or NaN."),
        ([0.5, 1.0], "Labels are classes: strings or integers, never missing; got fractions or NaN."),
        (np.array([b"a"]), "Labels must be strings or integers, got dtype |S1."),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "Labels must be strings or integers, got dtype datetime64[D]."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_labels_that_cannot_be_used_are_refused_with_the_reason(y: Any, sentence: str) -> None:
    with refused(sentence):
        as_labels(y)


def test_a_label_as_plain_python_can_stand_in_json() -> None:
    assert as_label(np.str_("a")) == "a"
    assert type(as_label(np.str_("a"))) is str
    assert as_label(np.int64(7)) == 7
    assert type(as_label(np.int64(7))) is int


# Support and query


def test_support_with_another_number_of_labels_than_rows_is_refused() -> None:
    with refused("The support has 2 rows but 3 labels; give one label a row."):
        Support(ROWS, ["a", "b", "c"])


def test_classes_are_sorted_and_named_once_as_plain_python() -> None:
    assert Support(ROWS, ["b", "a"]).classes == ["a", "b"]
    classes = Support(np.zeros((4, 1)), [30, -2, 30, 7]).classes
    assert classes == [-2, 7, 30]
    assert {type(label) for label in classes} == {int}


def test_query_has_no_place_for_labels() -> None:
    assert [field.name for field in dataclasses.fields(Query)] == ["x"]
    with pytest.raises(TypeError, match="positional argument"):
        Query(ROWS, ["a", "b"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        Query(ROWS, y=["a", "b"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        Query(ROWS).y = np.array(["a", "b"])


# Environments


def test_a_half_of_an_environment_may_come_later() -> None:
    assert Environment("clinic", Support(ROWS, ["a", "b"])).query is None
    assert Environment("clinic", query=Query(ROWS)).support is None


def test_an_environment_with_neither_half_is_refused() -> None:
    with refused('Environment "clinic" has neither support nor query; give at least one.'):
        Environment("clinic")


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_an_environment_without_a_name_is_refused(name: Any) -> None:
    with refused(f"An environment needs a name to be asked for by, got {name!r}."):
        Environment(name, query=Query(ROWS))


def test_halves_of_the_wrong_kind_are_refused() -> None:
    with refused('The support of environment "clinic" must be a perdure.Support, got Query.'):
        Environment("clinic", Query(ROWS))
    with refused('The query of environment "clinic" must be a perdure.Query, got ndarray.'):
        Environment("clinic", query=ROWS)


def test_streams_of_different_width_are_refused() -> None:
    sentence = (
        'Environment "clinic": a support row has shape (2,) and a query row (5,); both streams must have the same features.'
    )
    with pytest.raises(InputError, match="^" + re.escape(sentence) + "$"):
        Environment("clinic", Support(ROWS, ["a", "b"]), Query(np.zeros((4, 5))))


def test_a_query_one_column_wider_is_asked_about_its_label_column() -> None:
    with pytest.raises(InputError, match=re.escape("same features. Does the query still hold its label column?") + "$"):
        Environment("clinic", Support(ROWS, ["a", "b"]), Query(np.zeros((4, 3))))
    with pytest.raises(InputError, match=r"same features\.$"):  # a narrower query has none to drop
        Environment("clinic", Support(ROWS, ["a", "b"]), Query(np.zeros((4, 1))))


def environment(x_s: Any = ROWS, y: Any = ("a", "b"), x_q: Any = ROWS) -> Environment:
    return Environment("clinic", Support(x_s, y), Query(x_q))


def test_the_digest_is_the_same_for_the_same_data_however_it_was_given() -> None:
    assert environment(ROWS.tolist(), np.array(["a", "b"], dtype=object), torch.tensor(ROWS)).digest == environment().digest


@pytest.mark.parametrize(
    "other",
    [
        environment(x_s=ROWS + 1e-6),
        environment(x_s=ROWS[::-1]),
        environment(y=["b", "a"]),
        environment(y=["a", "c"]),
        environment(x_q=ROWS[:1]),
        environment(x_q=-ROWS),
        Environment("clinic", Support(ROWS, ["a", "b"])),
        Environment("clinic", query=Query(ROWS)),
    ],
)
def test_the_digest_differs_where_the_data_do(other: Environment) -> None:
    assert other.digest != environment().digest


# Scenarios


def test_a_scenario_keeps_the_order_of_its_environments() -> None:
    environments = [Environment(name, Support(ROWS, ["a", "b"]), Query(ROWS)) for name in ("z", "a")]
    scenario = Scenario("two", environments, Answers({"a": np.array(["a"]), "z": np.array(["b"])}))
    assert [environment.name for environment in scenario.environments] == ["z", "a"]


def test_a_scenario_that_names_an_environment_twice_is_refused() -> None:
    environments = [Environment("a", query=Query(ROWS)), Environment("a", query=Query(ROWS))]
    with refused("Scenario \"two\" names an environment twice: ['a', 'a']."):
        Scenario("two", environments, Answers({"a": np.array(["a"])}))


def test_a_scenario_without_answers_to_score_against_is_refused() -> None:
    environments = [Environment("a", query=Query(ROWS)), Environment("b", query=Query(ROWS))]
    with refused("Scenario \"two\" has no held-out labels for ['b']."):
        Scenario("two", environments, Answers({"a": np.array(["a"])}))


@pytest.mark.parametrize("kind", [Support, Query, Environment, Answers, Scenario])
def test_what_arrived_is_a_value_that_nobody_can_change(kind: type) -> None:
    value = object.__new__(kind)
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)


def test_what_arrived_is_told_apart_by_identity() -> None:
    # Comparing arrays gives arrays, so equality of values would be an error in waiting.
    assert Query(ROWS) != Query(ROWS)
    assert Support(ROWS, ["a", "b"]) != Support(ROWS, ["a", "b"])
    query, answers = Query(ROWS), Answers({})
    assert Environment("a", query=query) != Environment("a", query=query)
    assert Answers({}) != Answers({})
    assert Scenario("none", [], answers) != Scenario("none", [], answers)


def test_an_input_error_is_a_value_error_and_one_of_perdures() -> None:
    assert issubclass(InputError, ValueError)
    assert issubclass(InputError, PerdureError)
