"""Beliefs are plain Objectives whose integrand is the paper's, term by term (Secs. 5, 6, App. H, I)."""

import numpy as np
import pytest
from scipy import integrate, stats

import lossnav as ln
from lossnav.problem.belief import adaptive, weight_uncertainty


@pytest.mark.parametrize("observation", ["moments", "squares", "gaussian"])
def test_adaptive_running_cost_is_the_displayed_lagrangian(observation):
    rng = np.random.default_rng(0)
    n, eta, k, kappa = 3, 0.7, 1.3, 0.8
    (a1, a2), (x1, x2), (s1, s2) = (0.2, 0.3), (0.9, 1.1), (0.6, 1.4)
    g, theta0 = rng.normal(size=(2, n))
    objective = adaptive(
        g, theta0=theta0, observation=observation, kappa=kappa, alpha=(a1, a2), xi=(x1, x2),
        sigma=(s1, s2), eta=eta, k=k, gamma=0.5,
    )  # fmt: skip
    theta, m, v = rng.normal(size=n), rng.normal(size=n), rng.uniform(0.5, 2, size=n)
    dtheta, dm, dv = rng.normal(size=(3, n))
    if observation != "gaussian":
        seen = g if observation == "squares" else g - m
        evidence = (g - m) ** 2 / (2 * s1**2) + (v - seen**2) ** 2 / (2 * s2**2)
    else:
        evidence = (g - m) ** 2 / (2 * v) + np.log(2 * np.pi * v) / 2
    prior = (dm + a1 * m) ** 2 / (2 * x1**2) + (dv + a2 * v) ** 2 / (2 * x2**2)
    believed = m @ (theta - theta0) + kappa / 2 * v @ (theta - theta0) ** 2
    expected = np.sum(dtheta**2 / (2 * eta) + evidence + prior) + k * believed
    state, velocity = np.concatenate([theta, m, v]), np.concatenate([dtheta, dm, dv])
    assert objective.kinetic(state, velocity) + objective.potential(state) == pytest.approx(
        expected
    )
    assert objective.names[:4] == ("theta1", "theta2", "theta3", "m1")


def test_changing_eta_or_k_changes_the_metric_and_the_evidence_too():
    from dataclasses import replace

    objective = replace(adaptive([0.5], eta=1.0, k=1.0), eta=0.1, k=3.0)
    fresh = adaptive([0.5], eta=0.1, k=3.0)
    state, velocity = np.array([0.2, -0.4, 0.9]), np.array([1.0, 2.0, 3.0])
    assert objective.kinetic(state, velocity) == pytest.approx(fresh.kinetic(state, velocity))
    assert objective.potential(state) == pytest.approx(fresh.potential(state))


def test_weight_uncertainty_running_cost_is_the_displayed_lagrangian():
    rng = np.random.default_rng(1)
    A = rng.normal(size=(3, 3))
    H, g, eta, k = A @ A.T, rng.normal(size=3), 0.7, 1.3
    objective = weight_uncertainty(ln.Quadratic(H, g=g), eta=eta, k=k)
    mu, v = rng.normal(size=3), rng.uniform(0.5, 2, size=3)
    dmu, dv = rng.normal(size=(2, 3))
    loss = g @ mu + mu @ H @ mu / 2 + np.diag(H) @ v / 2
    expected = np.sum(
        dmu**2 / (2 * eta * v) + dv**2 / (4 * eta * v**2) - np.log(2 * np.pi * np.e * v) / 2
    )
    state, velocity = np.r_[mu, v], np.r_[dmu, dv]
    assert objective.kinetic(state, velocity) + objective.potential(state) == pytest.approx(
        expected + k * loss
    )
    log = weight_uncertainty(ln.Quadratic(H, g=g), eta=eta, k=k, variance="log")
    state, velocity = np.r_[mu, np.log(v)], np.r_[dmu, dv / v]
    assert log.kinetic(state, velocity) + log.potential(state) == pytest.approx(expected + k * loss)


def test_fisher_length_is_the_kl_divergence_of_a_small_change():
    """App. I: KL between neighbours is half the squared Fisher length, to third order."""
    mu, v, dmu, dv = 0.3, 0.8, 0.7, -0.4
    objective = weight_uncertainty(ln.Quadratic(1.0))

    def gap(h):
        new, old = stats.norm(mu + h * dmu, np.sqrt(v + h * dv)), stats.norm(mu, np.sqrt(v))
        kl, _ = integrate.quad(
            lambda x: new.pdf(x) * (new.logpdf(x) - old.logpdf(x)), -12, 12, epsabs=1e-14
        )
        return abs(kl - h**2 * objective.kinetic([mu, v], [dmu, dv]))

    assert np.log2(gap(0.04) / gap(0.02)) == pytest.approx(3.0, abs=0.2)


@pytest.mark.parametrize("text", ["w**4 - w", "w**6 + w**3", "(w**2 - 1)**2 - w/2"])
def test_expected_loss_is_exact_for_polynomials(text):
    """Against Gauss-Hermite quadrature of the loss itself."""
    loss = ln.Expression(text, ["w"])
    mu, v = 0.6, 0.35
    x, w = np.polynomial.hermite_e.hermegauss(20)
    average = w @ loss((mu + np.sqrt(v) * x)[:, None]) / w.sum()
    objective = weight_uncertainty(loss, entropy=False)
    assert objective.loss([mu, v]) == pytest.approx(average, rel=1e-12)


def test_expected_loss_of_other_losses_is_a_series():
    """exp(w): the expectation is exp(mu + v/2), approached term by term."""
    true = np.exp(0.2 + 0.1)
    gaps = [
        abs(
            weight_uncertainty(ln.Expression("exp(w)", ["w"]), entropy=False, order=n).loss(
                [0.2, 0.2]
            )
            - true
        )
        for n in (1, 2, 3)
    ]
    assert gaps[0] > 10 * gaps[1] > 100 * gaps[2]


def test_the_balance_of_variance():
    """App. I: the loss of (mu, v) is stationary at v_i = 1/(k H_ii)."""
    objective = weight_uncertainty(ln.Quadratic([[4.0, 1.0], [1.0, 0.5]]), k=2.0)
    assert objective.loss.grad([0.0, 0.0, 1 / 8, 1.0]) == pytest.approx(np.zeros(4), abs=1e-14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: adaptive([0.1], observation="moment"), "Did you mean 'moments'"),
        (lambda: adaptive([np.nan]), "g is nan"),
        (lambda: adaptive([0.1], xi=(0.0, 1.0)), r"xi\[0\] is 0"),
        (lambda: adaptive([0.1], alpha=(-1.0, 1.0)), r"alpha\[0\] is -1"),
        (lambda: adaptive([0.1, 0.2], theta0=[0.0]), "theta0 has 1 coordinates"),
        (lambda: weight_uncertainty(lambda w: w[0] ** 2), "how many weights"),
        (lambda: weight_uncertainty(ln.Quadratic(1.0), variance="logs"), "Did you mean 'log'"),
        (lambda: weight_uncertainty(ln.Quadratic(1.0), order=0), "order is 0"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
