"""Intervals by simulation, tests by counting, times and ranges by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lossnav.studies.statistics import (
    FEW,
    compare,
    compare_all,
    edges,
    first_reach,
    holm,
    interval,
    reach,
    sign_flip,
    usable_range,
)

NAN, INF = math.nan, math.inf
SAMPLES = {
    "normal": (lambda rng, n: rng.normal(size=n), 0.0),
    "skewed": (lambda rng, n: rng.lognormal(0.0, 0.5, n), math.exp(0.125)),
    "exponential": (lambda rng, n: rng.exponential(size=n), 1.0),
}
# What 95 % intervals really cover, and how far off a simulation of this length may be.
COVERED = {
    ("normal", 3): 0.950,
    ("normal", 5): 0.950,
    ("normal", 10): 0.945,
    ("skewed", 3): 0.922,
    ("skewed", 5): 0.914,
    ("skewed", 10): 0.933,
    ("exponential", 3): 0.883,
    ("exponential", 5): 0.883,
    ("exponential", 10): 0.935,
}


def coverage(kind, n, runs):
    draw, mean = SAMPLES[kind]
    rng = np.random.default_rng(n)
    found = [interval(draw(rng, n)) for _ in range(runs)]
    return np.mean([one.low <= mean <= one.high for one in found])


@pytest.mark.parametrize(("kind", "n"), COVERED)
def test_intervals_cover_the_true_mean_as_often_as_the_docs_say(kind, n):
    runs = 4000 if n < FEW else 500
    found = coverage(kind, n, runs)
    assert found == pytest.approx(COVERED[kind, n], abs=4 * math.sqrt(0.05 * 0.95 / runs))
    if kind != "exponential" or n >= FEW:
        assert 0.90 <= found <= 0.98
    # Student's t does not reach 90 % of three to five exponential values; the docs say so.


@pytest.mark.parametrize(("kind", "covered"), [("normal", 0.84), ("exponential", 0.81)])
def test_the_usual_bootstrap_covers_too_little(kind, covered):
    """Why it is not used: SciPy's BCa intervals of five seeds."""
    draw, mean = SAMPLES[kind]
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(250):
        found = stats.bootstrap((draw(rng, 5),), np.mean, n_resamples=400, rng=rng)
        hits += found.confidence_interval.low <= mean <= found.confidence_interval.high
    assert hits / 250 == pytest.approx(covered, abs=0.06)


def test_few_seeds_use_student_and_many_the_bootstrap_of_scipy():
    values = np.random.default_rng(1).lognormal(0, 0.5, 10)
    few = interval(values[:5])
    known = stats.ttest_1samp(values[:5], 0.0).confidence_interval(0.95)
    assert (few.low, few.high, few.method) == (
        pytest.approx(known.low),
        pytest.approx(known.high),
        "t",
    )
    # The same idea by an independent road: SciPy resamples, t is made here from its distribution.
    rng = np.random.default_rng(2)
    t = [stats.ttest_1samp(rng.choice(values, 10), values.mean()).statistic for _ in range(1500)]
    error = values.std(ddof=1) / math.sqrt(10)
    low, high = values.mean() - np.quantile(t, [0.975, 0.025]) * error
    many = interval(values)
    assert many.method == "bootstrap-t"
    assert (many.low, many.high) == (
        pytest.approx(low, abs=0.25 * error),
        pytest.approx(high, abs=0.25 * error),
    )
    assert many == interval(values)  # no luck in it


def test_an_interval_of_one_none_equal_or_lost_values():
    assert interval([]).n == 0
    assert math.isnan(interval([]).mean)
    one = interval([0.3])
    assert (one.mean, one.method) == (0.3, "")
    assert math.isnan(one.low)
    same = interval([0.1] * 3)
    assert (same.mean, same.sd, same.low, same.high) == (0.1, 0.0, 0.1, 0.1)
    lost = interval([0.1, INF, 0.2, NAN])
    assert (lost.n, lost.lost) == (4, 2)
    assert math.isnan(lost.mean)  # never the mean of the two that were lucky


def test_values_that_repeat_fall_back_on_student():
    """Of 9 equal values and another, most resamples have no scatter at all."""
    found = interval([0.5] * 9 + [0.6])
    assert found.method == "t"
    assert math.isfinite(found.low)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=9))
def test_sign_flips_are_counted(differences):
    """Every pattern written out; whole numbers, so that ties are ties."""
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * one for sign, one in zip(signs, differences, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(differences))
    ]
    assert sign_flip(differences) == pytest.approx(np.mean([one >= observed for one in sums]))


def test_sign_flips_agree_with_scipy_and_survive_rounding():
    gap = np.random.default_rng(3).normal(0.4, 1.0, 10)
    known = stats.permutation_test(
        (gap, np.zeros(10)),
        lambda a, b: np.mean(a - b),
        permutation_type="samples",
        n_resamples=INF,
    )
    assert sign_flip(gap) == pytest.approx(known.pvalue)
    assert sign_flip([0.1, 0.2, 0.3, 0.7]) == sign_flip([0.7, 0.3, 0.2, 0.1]) == 2 / 16
    assert sign_flip(np.full(20, 0.1)) == 2 / 2**20
    assert sign_flip(np.full(60, 0.1)) == pytest.approx(1e-4)  # sampled: no less than 1 in 10,000
    assert sign_flip([0.0, 0.0]) == 1.0


def test_holm_against_the_definition():
    """The smallest p times m, the next times m - 1, and so on, never falling."""
    p = [0.01, 0.2, 0.005, 0.04]
    assert holm(p) == pytest.approx([0.03, 0.2, 0.02, 0.08])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.01, NAN])[0] == 0.01
    assert math.isnan(holm([0.01, NAN])[1])


def test_a_comparison_uses_the_pairs():
    """Scatter that both rules share drops out: the unpaired test sees nothing here."""
    rng = np.random.default_rng(4)
    shared = rng.normal(0, 1, 6)
    one, two = shared + rng.normal(0, 0.01, 6), shared + 0.1 + rng.normal(0, 0.01, 6)
    found = compare(one, two)
    known = stats.ttest_rel(two, one)
    assert found.p_t == pytest.approx(known.pvalue)
    assert found.difference.low == pytest.approx(known.confidence_interval(0.95).low)
    assert (found.ahead, found.equal, found.behind) == (6, 0, 0)
    assert found.p == 2 / 64
    assert found.apart
    assert stats.ttest_ind(one, two).pvalue > 0.5


def test_higher_is_better_turns_the_signs_but_not_the_difference():
    low, high = compare([1, 2, 3], [2, 2, 4]), compare([1, 2, 3], [2, 2, 4], "higher")
    assert (low.ahead, low.equal, low.behind) == (2, 1, 0)
    assert (high.ahead, high.equal, high.behind) == (0, 1, 2)
    assert low.difference == high.difference


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("lost", [NAN, INF, -INF])
def test_a_lost_seed_is_worse_than_any_other(better, lost):
    good, bad = [0.5, 0.5, 0.5, 0.5], [0.5, lost, lost, lost]
    found = compare(good, bad, better)
    assert (found.ahead, found.equal, found.behind) == (3, 1, 0)
    assert found.difference.lost == 3
    assert math.isnan(found.difference.mean)
    assert found.p == 2 / 8  # three ranks that agree; the tie has none
    assert not found.apart
    both = compare([lost, 1.0], [lost, 1.0], better)
    assert (both.ahead, both.equal, both.behind, both.p) == (0, 2, 0, 1.0)


def test_ranks_of_lost_seeds_against_wilcoxon():
    """One infinite difference: Wilcoxon's signed ranks with a very large number for it."""
    one = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    two = one + np.array([0.3, -0.1, 0.2, INF, 0.5, -0.4])
    known = stats.wilcoxon(np.where(np.isinf(two), 99.0, two) - one, method="exact")
    assert compare(one, two).p == pytest.approx(known.pvalue)


def test_unequal_seeds_are_refused_and_pairs_take_what_both_have():
    with pytest.raises(ValueError, match="the same seeds of both"):
        compare([1, 2], [1, 2, 3])
    rules = {"a": {1: 0.1, 2: 0.2}, "b": {2: 0.4, 3: 0.1}, "c": {9: 1.0}}
    (pair,) = compare_all(rules)
    assert (pair.first, pair.second, pair.difference.n, pair.difference.mean) == (
        "a",
        "b",
        1,
        pytest.approx(0.2),
    )
    assert not pair.alone


def test_looking_at_many_pairs_is_corrected():
    """Equal rules: without correction, some pair is 'apart' in half of the studies."""
    rng = np.random.default_rng(5)
    alone = apart = 0
    for _ in range(120):
        rules = {str(i): dict(enumerate(rng.normal(size=5))) for i in range(6)}
        pairs = compare_all(rules)
        alone += any(pair.alone for pair in pairs)
        apart += any(pair.apart for pair in pairs)
    assert alone > 30
    assert apart <= 12  # 5 % of 120 is 6


def test_a_target_is_reached_between_evaluations():
    steps, loss = [0, 100, 200, 300], [2.0, 1.0, 0.8, 0.9]
    assert first_reach(steps, loss, 1.5) == pytest.approx(50)
    assert first_reach(steps, loss, 0.85) == pytest.approx(175)
    assert first_reach(steps, loss, 0.8) == 200
    assert first_reach(steps, loss, 3.0) == 0
    assert first_reach(steps, loss, 0.7) == INF
    assert first_reach(steps, [-one for one in loss], -1.5, "higher") == pytest.approx(50)
    assert first_reach([10, 20, 30], [NAN, NAN, 0.5], 0.6) == 30
    assert first_reach([10, 20], [INF, 0.5], 0.6) == 20
    assert first_reach([], [], 1.0) == INF


def test_a_seed_that_never_gets_there_is_not_left_out():
    some = reach([100.0, INF, 120.0, INF, 90.0])
    assert (some.reached, some.n, some.median) == (3, 5, 120.0)
    assert math.isnan(some.mean.mean)
    few = reach([100.0, INF])
    assert math.isnan(few.median)
    every = reach([100.0, 120.0])
    assert (every.median, every.mean.mean) == (110.0, 110.0)
    assert reach([]).n == 0


def test_the_range_of_good_learning_rates():
    lr, loss = [1.0, 0.001, 0.01, 0.1, 10.0], [0.4, 0.9, 0.3, 0.2, NAN]
    found = usable_range(lr, loss, 0.1)
    assert (found.best, found.low, found.high) == (
        0.1,
        pytest.approx(0.01),
        pytest.approx(10**-0.5),
    )
    assert (found.open_low, found.open_high) == (False, False)
    assert found.factor == pytest.approx(10**1.5)
    wide = usable_range(lr, loss, 5.0)
    assert (wide.low, wide.open_low) == (0.001, True)
    assert (wide.high, wide.open_high) == (1.0, False)  # the next one diverged
    turned = usable_range(lr, [-one for one in loss], 0.1, "higher")
    assert turned == found
    assert usable_range([0.1, 1.0], [NAN, INF], 0.1) is None
    single = usable_range([0.1], [1.0], 0.1)
    assert (single.low, single.high, single.open_low, single.open_high) == (0.1, 0.1, True, True)


def test_edges_of_a_grid():
    grid = [
        {"lr": lr, "beta": beta, "nesterov": flag, "decay": 0.0}
        for lr, beta, flag in itertools.product((0.01, 0.1, 1.0), (0.9, 0.99), (True, False))
    ]
    point = {"lr": 0.1, "beta": 0.99, "nesterov": True, "decay": 0.0}
    assert edges(point, grid) == {"beta": "highest"}
    assert edges({**point, "lr": 0.01}, grid) == {"lr": "lowest", "beta": "highest"}
    assert edges({}, grid) == {}
