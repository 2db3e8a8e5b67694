"""The reference against the definition, numbers made by hand, and identities of V-trace."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtaudit.errors import SettingsError
from vtaudit.kernels import Thresholds, vtrace_packed
from vtrace_definition import THRESHOLDS, assert_close, assert_same_bits, define_packed, make_rows

NAN, INF = math.nan, math.inf


def scan(rows, thresholds=THRESHOLDS["ones"], dtype="float64"):
    return vtrace_packed(*rows, thresholds=thresholds, backend="reference", dtype=dtype)


def one_segment(log_ratio, value, reward, discount, bootstrap):
    columns = [np.array(column, np.float64) for column in (log_ratio, value, reward, discount)]
    return (*columns, np.array([bootstrap], np.float64), np.array([0, len(value)]))


@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize("lengths", [[1], [2], [40], [3, 0, 1, 17, 0], [0, 0], []], ids=str)
def test_reference_equals_definition(lengths, name):
    rows = make_rows(lengths, np.float64, seed=len(lengths))
    assert_close(
        scan(rows, THRESHOLDS[name]), define_packed(rows, THRESHOLDS[name]), rtol=1e-12, atol=1e-12
    )


def test_targets_by_hand():
    rows = one_segment([math.log(3), math.log(0.5)], [2, 3], [1, 2], [0.9, 0.9], 4)
    found = scan(rows)
    np.testing.assert_allclose(found.value_target, [4.87, 4.3], rtol=1e-14)
    np.testing.assert_allclose(found.advantage, [2.87, 1.3], rtol=1e-14)
    np.testing.assert_allclose(found.next_value, [3, 4])
    np.testing.assert_allclose(found.trace_length, [2, 1])


@pytest.mark.parametrize("length", [1, 7, 50])
def test_on_policy_targets_are_discounted_returns(length):
    _, value, reward, discount, bootstrap, offsets = make_rows(
        [length], np.float64, zero_discounts=False
    )
    found = scan((np.zeros(length), value, reward, discount, bootstrap, offsets))
    expected = bootstrap[0]
    for t in reversed(range(length)):
        expected = reward[t] + discount[t] * expected
        np.testing.assert_allclose(found.value_target[t], expected, rtol=1e-12)
    np.testing.assert_allclose(found.trace_length, np.arange(length, 0, -1))


def test_targets_without_discount_are_one_step():
    log_ratio, value, reward, discount, bootstrap, offsets = make_rows([9], np.float64)
    found = scan((log_ratio, value, reward, discount * 0, bootstrap * NAN, offsets))
    rho = np.exp(np.minimum(log_ratio, 0))
    np.testing.assert_allclose(found.value_target, value + rho * (reward - value), rtol=1e-14)
    assert not found.next_value.any()


@given(
    seed=st.integers(0, 1000),
    length=st.integers(1, 30),
    place=st.integers(0, 29),
    added=st.floats(-10, 10),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_reward_raised_moves_earlier_targets_only(seed, length, place, added):
    place %= length
    rows = make_rows([length], np.float64, seed=seed, span=1.0)
    raised = rows[2].copy()
    raised[place] += added
    before = scan(rows)
    after = scan((*rows[:2], raised, *rows[3:]))
    difference = after.value_target - before.value_target
    assert not difference[place + 1 :].any()
    for t in range(place + 1):
        factor = np.prod(rows[3][t:place] * before.c[t:place]) * before.rho[place]
        np.testing.assert_allclose(difference[t], added * factor, rtol=1e-9, atol=1e-12)


def test_nan_stays_behind_a_cut():
    # row 1 ends an episode: its successor's NaN, and the bootstrap's, are for nobody
    rows = one_segment([0] * 4, [1, 2, NAN, 4], [1, 1, 1, NAN], [0.9, 0, 0.9, 0.9], 5)
    found = scan(rows)
    np.testing.assert_allclose(found.value_target[:2], [1.9, 1.0])
    np.testing.assert_allclose(found.advantage[:2], [0.9, -1.0])
    assert np.isnan(found.value_target[2:]).all()


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_factor_of_zero_is_a_cut(poison):
    # pi gives the action of row 1 no mass: rho, c and pg_rho are 0 there
    rows = one_segment([0, -INF, 0], [1, 2, poison], [1, poison, poison], [0.5] * 3, 0)
    found = scan(rows)
    assert [column[1] for column in (found.rho, found.c, found.pg_rho)] == [0, 0, 0]
    assert [found.delta[1], found.value_target[1], found.advantage[1]] == [0, 2, 0]
    assert [found.value_target[0], found.advantage[0], found.trace_length[0]] == [2, 1, 2]


def test_lambda_zero_hides_what_follows_the_next_value():
    rows = one_segment([NAN, 0, 0], [1, 2, 3], [1, 1, NAN], [0.5] * 3, 0)
    found = scan(rows, Thresholds(lambda_=0.0))
    assert found.c.tolist() == [0, 0, 0]
    assert found.trace_length.tolist() == [1, 1, 1]
    assert np.isnan(found.rho[0])
    np.testing.assert_allclose(found.value_target[1], 2.5)


def test_nan_log_ratio_is_never_a_full_weight():
    found = scan(one_segment([NAN], [1], [1], [0.5], 1))
    assert np.isnan([found.rho, found.pg_rho, found.value_target, found.advantage]).all()


def test_clips_are_strict_and_decided_on_the_stored_log_ratio():
    bar = 3  # exp(log(bar)) is another number
    assert math.exp(math.log(bar)) != bar
    log_ratio = np.array([math.log(bar), np.nextafter(math.log(bar), 9), 900.0])
    rows = (log_ratio, *one_segment([0] * 3, [0] * 3, [1] * 3, [0] * 3, 0)[1:])
    assert scan(rows, Thresholds(rho_bar=bar)).rho.tolist() == [math.exp(math.log(bar)), bar, bar]
    # rounded to float32 first: the same decision as a query on the stored column takes
    found = scan(rows, Thresholds(rho_bar=bar), "float32")
    stored = found.log_ratio.astype(np.float64)
    assert ((found.rho == np.float32(bar)) == (stored > math.log(bar))).all()


def test_results_take_the_dtype_asked_for():
    rows = make_rows([5], np.float64)
    assert {column.dtype for column in scan(rows, dtype=np.float32)} == {np.dtype(np.float32)}
    assert {column.dtype for column in scan(rows, dtype=None)} == {np.dtype(np.float64)}
    assert_same_bits(scan(rows, dtype=np.dtype(np.float32)), scan(rows, dtype="float32"))


@pytest.mark.parametrize(
    ("settings_given", "message"),
    [
        ({"rho_bar": 0.0}, "rho_bar: found 0.0, expected a number > 0"),
        ({"c_bar": -1}, "c_bar: found -1"),
        ({"pg_rho_bar": NAN}, "pg_rho_bar: found nan"),
        ({"rho_bar": "1"}, "rho_bar: found '1'"),
        ({"lambda_": 1.1}, r"lambda_: found 1.1, expected a number in \[0, 1\]"),
        ({"lambda_": True}, "lambda_: found True"),
    ],
)
def test_thresholds_refuse_values_out_of_range(settings_given, message):
    with pytest.raises(SettingsError, match=message):
        Thresholds(**settings_given)
