"""The explorer's answers against routes that do not use its code."""

import itertools
import json
import math
import random
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import lossnav as ln
from lossnav.explorer import api, requests
from lossnav.explorer.api import STORIES
from lossnav.explorer.landscapes import LANDSCAPES, prepared
from lossnav.explorer.paths import FIELDS, RATES, RULES, path_request
from lossnav.explorer.requests import Refused
from lossnav.problem.builtin import problem

BOWL = {"landscape": "bowl", "gamma": 0.0}
MATHML = "{http://www.w3.org/1998/Math/MathML}"


def xy(answer):
    return np.stack([answer["x"], answer["y"]], axis=1)


def rule_path(request, name):
    (row,) = api.answer("rules", request | {"rules": [name]})["rows"]
    return np.array(row["t"]), xy(row)


@pytest.mark.parametrize(("eta", "k", "gamma"), [(1.0, 1.0, 0.0), (0.5, 2.0, 1.5)])
def test_the_path_in_a_bowl_is_the_known_exponential(eta, k, gamma):
    """MATHS 2: x(t) = x0 exp(-rho t), and J = rho |x0|^2 / (2 eta) with rho = ... for curvature 4."""
    found = api.answer("path", BOWL | {"eta": eta, "k": k, "gamma": gamma, "x": 1.0, "y": 1.5})
    rho = math.sqrt(gamma**2 / 4 + eta * k * 4) - gamma / 2
    t = np.array(found["t"])
    expected = np.array([0.0, -0.5]) + np.outer(np.exp(-rho * t), [1.0, 2.0])
    np.testing.assert_allclose(xy(found), expected, atol=1e-9)
    integral = (rho**2 / (2 * eta) + 2 * k) * 5 / (2 * rho + gamma)
    assert found["J"] == pytest.approx(integral, rel=1e-9)
    assert found["end"] == pytest.approx([0.0, -0.5], abs=1e-12)
    potential = 2 * k * ((xy(found) - [0.0, -0.5]) ** 2).sum(1)
    np.testing.assert_allclose(found["potential"], potential, atol=1e-9)
    kinetic = rho**2 / (2 * eta) * ((xy(found) - [0.0, -0.5]) ** 2).sum(1)
    np.testing.assert_allclose(found["kinetic"], kinetic, atol=2e-3 * kinetic.max())


@pytest.mark.parametrize(
    "more",
    [{}, {"metric": "anisotropic", "ratio": 5.0}, {"drift": "rotation", "speed": 0.7}, {"drift": "decay"}],
    ids=str,
)  # fmt: skip
def test_the_path_of_the_double_well_is_no_dearer_than_a_direct_minimiser_finds(more):
    """A discretised J, minimised without any equation, over the same time to the same end."""
    request = {"gamma": 0.6, "horizon": 3.0} | more
    found = api.answer("path", request)
    chosen = path_request(request)
    end = xy(found)[-1]
    direct = [
        ln.solve(chosen.objective, chosen.theta0, 3.0, end=end, method=ln.Direct(steps=steps)).J
        for steps in (100, 200)
    ]
    limit = direct[1] + (direct[1] - direct[0]) / 3  # second order
    assert found["J"] == pytest.approx(limit, rel=2e-4)


def test_two_basins_compete_and_the_better_one_wins():
    """MATHS 4: from (-0.6, 0.55) the nearer, higher minimum wins once gamma > 0.6646."""
    below, above = (api.answer("path", {"gamma": gamma}) for gamma in (0.66, 0.67))
    assert below["end"][0] == pytest.approx(1.05745, abs=1e-5)
    assert above["end"][0] == pytest.approx(-0.93040, abs=1e-5)
    assert (below["status"], above["status"]) == ("CONVERGED", "CONVERGED")
    assert api.answer("path", {"gamma": 0.66461})["status"] == "NEAR_TIE"
    (other,) = below["candidates"]
    assert other["end"][0] == pytest.approx(-0.93040, abs=1e-5)
    assert other["J"] > below["J"]


def _asked(seed):
    """Settings as a hand may leave them: any landscape, geometry, drift and start in the box."""
    rnd = random.Random(seed)
    name = rnd.choice([one for one in LANDSCAPES if one != "normal"])
    x0, x1, y0, y1 = LANDSCAPES[name].box
    return {
        "landscape": name, "x": rnd.uniform(x0, x1), "y": rnd.uniform(y0, y1),
        "gamma": rnd.choice([0.0, 0.1, 0.5, 2.0, 10.0]), "eta": rnd.choice([0.5, 1.0, 2.0]),
        "horizon": rnd.choice([None, None, 1.0, 6.0]),
        "metric": rnd.choice(["euclidean", "anisotropic"]), "angle": rnd.uniform(-90, 90),
        "drift": rnd.choice(["none", "none", "decay", "rotation"]), "speed": rnd.choice([0.1, 0.6]),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_the_path_that_is_drawn_first_is_the_best_of_all(seed):
    """What the first answer gives up as plainly dearer is worked out by the second."""
    request = _asked(seed)
    try:
        whole = api.answer("basins", request)
    except Refused as error:
        with pytest.raises(Refused, match=re.escape(str(error)[:30])):
            api.answer("path", request)
        return
    first = api.answer("path", request)
    assert first["J"] == pytest.approx(whole["J"], rel=1e-6, abs=1e-9)
    assert first["ok"] == whole["ok"]
    if whole["status"] != "NEAR_TIE" and whole["end"] is not None:
        assert first["end"] == pytest.approx(whole["end"], abs=1e-4)
    costs = [one["J"] for one in whole["candidates"]]
    for one in first["candidates"]:
        assert min(abs(one["J"] - other) for other in costs) <= 1e-4 * abs(one["J"])


def test_the_second_answer_has_every_basin():
    """Himmelblau's function has four minima, of equal height: each has its best path."""
    found = api.answer("basins", {"landscape": "himmelblau", "gamma": 0.1})
    ends = sorted([found["end"], *(one["end"] for one in found["candidates"])])
    np.testing.assert_allclose(ends, sorted(prepared("himmelblau", "").minima), atol=1e-5)
    costs = [found["J"], *(one["J"] for one in found["candidates"])]
    assert costs == sorted(costs)


@pytest.mark.parametrize("name", LANDSCAPES)
def test_one_point_in_plain_numbers_is_the_same_as_in_arrays(name):
    loss, rng = prepared(name, "").loss, np.random.default_rng(0)
    x0, x1, y0, y1 = LANDSCAPES[name].box
    for order in (0, 1, 2):
        theta = np.array([rng.uniform(x0, x1), rng.uniform(y0, y1)])
        alone, arrays = loss.jet_at(theta, order), loss.jet(theta, order)
        assert len(alone) == len(arrays) == order + 1
        for one, other in zip(alone, arrays, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("point", [(-1.0, 2.0), (1.0, -2.0), (1.0, 1.0), (1e3, 1.0), (0.0, 1.0)])
def test_where_plain_numbers_end_arrays_go_on(point):
    loss = prepared("expression", "log(x)*sqrt(y) + abs(x - 1) + exp(x)").loss
    with np.errstate(all="ignore"):
        for one, other in zip(loss.jet_at(np.array(point)), loss.jet(np.array(point)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_an_answer_does_not_depend_on_those_before():
    asked = {"landscape": "himmelblau", "gamma": 0.4, "x": 1.3, "y": -0.2}
    first = api.answer("path", asked)
    for x in (-3.0, 0.5, 2.5):
        api.answer("path", asked | {"x": x})
    assert api.answer("path", asked) == first


def test_minima_are_the_known_ones():
    """By hand or from the literature, to the digits given there."""
    known = {
        "bowl": [(0, -0.5)],
        "valley": [(0, 0)],
        "rosenbrock": [(1, 1)],
        "normal": [(1, 0.5)],
        "himmelblau": [(3, 2), (-2.805118, 3.131312), (-3.779310, -3.283186), (3.584428, -1.848126)],
        "mueller-brown": [(-0.558224, 1.441726), (0.623499, 0.028038), (-0.050011, 0.466694)],
        "double-well": [(1.057454, 0), (-0.930403, 0)],
    }  # fmt: skip
    assert set(known) == set(LANDSCAPES)
    for name, points in known.items():
        found = sorted(prepared(name, "").minima)
        np.testing.assert_allclose(found, sorted(points), atol=2e-6, err_msg=name)


def test_flow_is_the_exponential_of_the_hessian():
    request = {"landscape": "valley", "rate": 0.7, "steps": 40, "dt": 0.2, "gamma": 0.5}
    times, theta = rule_path(request, "flow")
    expected = np.exp(-0.7 * np.outer(times, [1 / 9, 1.0])) * [-3.0, -3.0]
    np.testing.assert_allclose(theta, expected, atol=2e-5)
    metric = {"metric": "anisotropic", "ratio": 4.0, "angle": 0.0}
    times, theta = rule_path(request | metric, "natural")
    expected = np.exp(-0.7 * np.outer(times, [1 / 9, 1 / 4])) * [-3.0, -3.0]
    np.testing.assert_allclose(theta, expected, atol=2e-5)


def test_momentum_and_adam_are_those_that_everybody_knows():
    request = {"landscape": "double-well", "rate": 0.05, "steps": 30}
    loss = ln.DoubleWell()
    theta, buffer, path = np.array([-0.6, 0.55]), np.zeros(2), []
    for _ in range(30):
        buffer = 0.9 * buffer + loss.grad(theta)
        theta = theta - 0.05 * buffer
        path.append(theta)
    np.testing.assert_allclose(rule_path(request, "momentum")[1][1:], path, atol=1e-12)
    theta, m, v, path = np.array([-0.6, 0.55]), np.zeros(2), np.zeros(2), []
    for t in range(1, 31):
        g = loss.grad(theta)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        path.append(theta)
    np.testing.assert_allclose(rule_path(request, "adam")[1][1:], path, atol=1e-12)


def test_newton_is_at_the_minimum_of_a_parabola_after_one_step():
    _, theta = rule_path(BOWL | {"steps": 3, "metric": "anisotropic"}, "newton")
    np.testing.assert_allclose(theta[1:], np.tile([0.0, -0.5], (3, 1)), atol=1e-12)


def test_the_rate_is_the_best_of_those_tried():
    request = {"landscape": "valley", "rules": ["adam", "momentum", "flow"], "steps": 50}
    rows = {row["name"]: row for row in api.answer("rules", request)["rows"]}
    for name, row in rows.items():
        each = [api.answer("rules", request | {"rules": [name], "rate": rate})["rows"][0]["J"]
                for rate in RATES]  # fmt: skip
        best = min(J for J in each if J is not None)
        assert row["J"] == pytest.approx(best, rel=1e-6), name
        assert row["rate"] == RATES[each.index(best)]


@pytest.mark.parametrize("name", LANDSCAPES)
def test_no_rule_beats_the_optimal_path(name):
    """A path of straight pieces is a path like any other, so its J is a bound."""
    found = api.answer("rules", {"landscape": name, "rules": list(RULES), "steps": 60})
    costs = [row["J"] for row in found["rows"] if row["J"] is not None]
    assert len(costs) >= 5
    assert costs == sorted(costs)
    assert found["J"] <= costs[0] + 1e-6 * abs(costs[0])


def test_the_field_points_where_solve_goes():
    request = {"gamma": 0.6}
    found = api.answer("field", request)
    objective = path_request(request).objective
    edge = np.stack([found["watershed"]["x"], found["watershed"]["y"]], axis=1)
    rng, checked = np.random.default_rng(3), 0
    for i in rng.permutation(len(found["x"]))[:30]:
        at = np.array([found["x"][i], found["y"][i]])
        inside = np.abs(at) < [1.3, 0.8]
        far = np.linalg.norm(edge - at, axis=1).min() > 0.15
        if not (inside.all() and far) or checked == 6:
            continue
        path = ln.solve(objective, at)
        way = path.velocity0 / np.linalg.norm(path.velocity0)
        assert way @ [found["u"][i], found["v"][i]] > 0.98
        np.testing.assert_allclose(path.end, found["minima"][found["basin"][i]], atol=1e-3)
        checked += 1
    assert checked == 6


REQUESTS = [
    {},
    {"landscape": "expression", "expression": "(x**2 - 1)**2 + y**2 - x/2", "horizon": 2.5},
    {"landscape": "valley", "metric": "anisotropic", "ratio": 3.0, "angle": 20.0, "drift": "decay"},
    {"landscape": "normal"},
    {"landscape": "bowl", "drift": "rotation", "speed": 2.0, "eta": 0.5, "k": 2.0},
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_the_lines_of_python_find_the_same_path(request_, capsys):
    found = api.answer("path", request_)
    names = {}
    exec(api.answer("equations", request_)["python"], names)
    assert names["path"].J == pytest.approx(found["J"], rel=1e-6)
    np.testing.assert_allclose(names["path"].velocity0, found["velocity0"], rtol=1e-5)
    assert str(names["path"].J)[:6] in capsys.readouterr().out


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_the_problem_file_is_one_that_solve_reads(request_, tmp_path):
    file = tmp_path / "found.toml"
    file.write_text(api.answer("equations", request_)["toml"], encoding="utf-8")
    read = problem(file)
    path = ln.solve(read.objective, read.theta0, request_.get("horizon", math.inf))
    assert path.J == pytest.approx(api.answer("path", request_)["J"], rel=1e-6)


def test_equations_are_mathml_of_the_derived_ones():
    for request in REQUESTS:
        found = api.answer("equations", request)
        assert found["text"] == str(ln.derive(path_request(request).objective))
        assert len(found["mathml"]) == 2
        for text in itertools.chain(*found["mathml"], *found["step"]["mathml"]):
            assert ET.fromstring(text).tag == MATHML + "math"
    assert api.answer("equations", {"drift": "rotation"})["step"] == {
        "mathml": [],
        "why": "The drift mixes directions or treats them unequally.",
    }


def test_beliefs_are_adam_and_the_textbook_filter():
    request = {"alpha": 0.1, "xi": 0.4, "sigma": 1.5, "beta1": 0.8, "beta2": 0.95, "steps": 50}
    found = api.answer("beliefs", request)
    m = v = 0.0
    mean, P = 0.0, None
    for t, g in enumerate(found["g"], 1):
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        assert found["adam"]["m"][t - 1] == pytest.approx(m / (1 - 0.8**t), rel=1e-9)
        # Adam keeps the second moment about zero.
        assert found["adam"]["v"][t - 1] == pytest.approx(v / (1 - 0.95**t), rel=1e-9)
        if P is None:
            mean, P, K = g, 1.5**2, 1.0
        else:
            mean *= math.exp(-0.1)
            P = math.exp(-0.2) * P + 0.4**2 * (1 - math.exp(-0.2)) / 0.2
            K = P / (P + 1.5**2)
            mean, P = mean + K * (g - mean), (1 - K) * P
        assert found["kalman"]["m"][t - 1] == pytest.approx(mean, rel=1e-9)
        assert found["kalman"]["gain"][t - 1] == pytest.approx(K, rel=1e-9)
    names = {}
    exec(found["python"], names)
    assert names["kalman"].gain.noise == pytest.approx(1.5**2)


def test_the_exact_filter_is_the_best_on_average():
    better = [
        api.answer("beliefs", {"seed": seed, "steps": 400})["rms"] for seed in range(6)
    ]  # fmt: skip
    assert sum(found["kalman"] for found in better) < sum(found["adam"] for found in better)
    assert sum(found["adam"] for found in better) < sum(found["gradient"] for found in better)


def test_uncertainty_rises_on_the_way_and_its_limit_is_logistic():
    found = api.answer("uncertainty", {})
    assert found["mu"][0] == 0.0
    assert found["v"][0] == 0.25
    assert max(found["v"]) > 0.4
    assert found["v"][-1] == pytest.approx(0.25, rel=2e-3)
    assert found["mu"][-1] == pytest.approx(2.0, rel=1e-3)
    still = api.answer("uncertainty", {"shift": 0.0, "after": 1.0, "gamma": 2.0, "eta": 0.5})
    t, v0 = np.array(still["t"]), 0.25
    logistic = 1 / (1 + (1 / v0 - 1) * np.exp(-0.5 / 2.0 * t))  # v' = (eta/gamma)(v - v^2)
    np.testing.assert_allclose(still["slow"]["v"], logistic, rtol=1e-4)
    names = {}
    exec(found["python"], names)
    np.testing.assert_allclose(names["path"].at(1.0), [np.interp(1.0, found["t"], found["mu"]), np.interp(1.0, found["t"], found["v"])], rtol=1e-3)  # fmt: skip


def test_a_task_that_does_not_change_changes_nothing():
    found = api.answer("uncertainty", {"shift": 0.0, "k": 2.0, "gamma": 0.5})
    assert set(found["mu"]) == {0.0}
    assert set(found["v"]) == {1 / 8}
    entropy = math.log(2 * math.pi * math.e / 8) / 2
    assert found["J"] == pytest.approx(
        (2.0 * 4 / 2 / 8 - entropy) / 0.5
    )  # k E L - entropy, for ever


@pytest.mark.parametrize("name", [*LANDSCAPES, "expression"])
def test_every_question_has_an_answer_that_is_json(name):
    for question in ("landscape", "path", "field", "equations"):
        text = json.dumps(api.answer(question, {"landscape": name}), allow_nan=False)
        assert len(text) < 400_000, question
    picture = api.answer("landscape", {"landscape": name})
    values = np.array(picture["z"], dtype=float)
    i, j = 17, 60
    loss = prepared(name, FIELDS["expression"]["default"]).loss
    assert values[i, j] == pytest.approx(float(loss([picture["x"][j], picture["y"][i]])))


BAD = [
    ("path", [], "A request must be an object"),
    ("path", {"gama": 1}, "There is no setting named 'gama'. Did you mean 'gamma'?"),
    ("path", {"gamma": "1"}, "gamma must be a number from 0 to 100, but it is '1'."),
    ("path", {"gamma": True}, "gamma must be a number from 0 to 100, but it is true."),
    ("path", {"gamma": float("nan")}, "but it is nan."),
    ("path", {"eta": 1e308}, "eta must be a number from 0.01 to 100"),
    ("path", {"eta": 10**400}, "eta must be a number from 0.01 to 100"),
    ("path", {"k": None}, "k must be a number from 0.001 to 100, but it is null."),
    ("path", {"steps": 1.5}, "steps must be a whole number from 1 to 400"),
    ("path", {"landscape": "Bowl"}, "There is no landscape named 'Bowl'. Did you mean 'bowl'?"),
    ("path", {"landscape": ["bowl"]}, "landscape must be one of"),
    ("path", {"box": [0, 1]}, "box must be a list of 4 entries, but it is a list of 2."),
    ("landscape", {"box": [1, 1, 0, 1]}, "The box goes from 1 to 1 in x"),
    ("rules", {"rules": ["adam", "sgd"]}, "There is no rules named 'sgd'"),
    ("path", {"landscape": "expression", "expression": "__import__('os')"}, "is not a known function"),
    ("path", {"landscape": "expression", "expression": "x" * 301}, "at most 300 are allowed"),
    ("path", {"landscape": "expression", "expression": "9**9**9 + x + y"}, "at most 64 is allowed"),
    ("path", {"landscape": "expression", "expression": "x +"}, ""),
    ("path", {"landscape": "expression", "expression": ""}, ""),
    ("path", {"landscape": "expression", "expression": "log(x) + y**2", "x": -1}, "not finite at the start"),
    ("path", {"landscape": "expression", "expression": "-x**2 - y**2", "gamma": 0.0}, "unbounded below"),
    ("path", {"metric": "fisher"}, "no minimum at y > 0"),
    ("path", {"metric": "fisher", "y": -1.0}, "start at y > 0"),
    ("beliefs", {"beta1": 1.0}, "beta1 must be a number from 0 to 0.999, but it is 1."),
    ("uncertainty", {"time": -1}, "time must be a number from 0.5 to 100, but it is -1."),
    ("nothing", {}, "There is no question named 'nothing'."),
]  # fmt: skip


@pytest.mark.parametrize(("question", "request_", "sentence"), BAD)
def test_bad_requests_get_a_sentence(question, request_, sentence):
    with pytest.raises(Refused) as refused:
        api.answer(question, request_)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_the_defaults_are_within_their_own_bounds():
    catalogue = api.catalogue()
    json.dumps(catalogue, allow_nan=False)
    assert list(catalogue["rules"]) == list(RULES)
    for _, table in api.QUESTIONS.values():
        for name, field in table.items():
            assert requests.read(table, {name: field["default"]})[name] == field["default"]
    for name, terrain in LANDSCAPES.items():
        requests.read(FIELDS, {"landscape": name, **terrain.settings})
        x0, x1, y0, y1 = terrain.box
        assert x0 < terrain.settings["x"] < x1
        assert y0 < terrain.settings["y"] < y1


def test_random_settings_are_answered_or_refused_for_a_reason():
    """Within the bounds a path comes out, whose J is about the area under the costs that are drawn, or a known sentence."""
    rng, sentences = random.Random(5), []
    for _ in range(25):
        request = {
            "landscape": rng.choice(["double-well", "bowl", "valley", "normal"]),
            "gamma": rng.choice([0.0, 0.01, 1.0, 30.0]), "eta": rng.choice([0.05, 1.0, 20.0]),
            "k": rng.choice([0.01, 1.0, 5.0]), "horizon": rng.choice([None, 0.1, 5.0]),
            "metric": rng.choice(["euclidean", "anisotropic", "fisher"]), "ratio": rng.choice([0.01, 100.0]),
            "drift": rng.choice(["none", "none", "decay"]), "x": rng.uniform(-3, 3), "y": rng.uniform(-1, 3),
        }  # fmt: skip
        try:
            found = json.loads(json.dumps(api.answer("path", request), allow_nan=False))
        except Refused as refused:
            sentences.append(str(refused))
            assert request["metric"] == "fisher"
            assert request["y"] <= 0 or (request["landscape"], request["horizon"]) == ("bowl", None)
            continue
        assert found["ok"]
        assert xy(found)[0] == pytest.approx([request["x"], request["y"]])
        t, gamma = np.array(found["t"]), request["gamma"]
        costs = np.exp(-gamma * t) * (np.array(found["kinetic"]) + found["potential"])
        left = math.inf if request["horizon"] is None else request["horizon"] - t[-1]
        if gamma > 0:  # at rest where the picture ends, up to the horizon
            left = -math.expm1(-gamma * left) / gamma
        rest = costs[-1] * left if math.isfinite(left) else 0.0
        assert found["J"] == pytest.approx(np.trapezoid(costs, t) + rest, rel=0.12)
    assert [sentence.split(":")[0] for sentence in sentences] == [
        "y is -0.00378938, but with the Fisher metric it is a variance",
        "With the Fisher metric y is a variance, but the landscape has no minimum at y > 0",
    ]


def test_a_formula_in_time_is_refused_in_one_sentence():
    with pytest.raises(api.Refused, match="contains t, but the page"):
        api.answer("path", {"landscape": "expression", "expression": "x**2*t + y**2"})


def told(name, **more):
    return STORIES[name].settings | more


def test_the_stories_are_true():
    """Each sentence against the numbers of the very settings that its link has."""
    crossing = api.answer("path", told("crossing"))
    rows = api.answer("rules", told("crossing"))["rows"]
    assert crossing["end"][0] == pytest.approx(1.05745, abs=1e-4)
    assert len(rows) == 3
    assert all(row["x"][-1] == pytest.approx(-0.930, abs=1e-2) for row in rows)

    patience = api.answer("field", told("patience"))
    edge = np.array([patience["watershed"]["x"], patience["watershed"]["y"]]).T
    assert np.abs(edge - [-0.6, 0.55]).sum(1).min() < 0.06  # the spacing of the nodes
    assert api.answer("path", told("patience"))["status"] == "NEAR_TIE"
    for gamma, end in ((0.65, 1.05745), (0.68, -0.93040)):
        assert api.answer("path", told("patience", gamma=gamma))["end"][0] == pytest.approx(end, abs=1e-4)  # fmt: skip

    natural = api.answer("path", told("natural"))
    first, second = api.answer("rules", told("natural"))["rows"]
    assert (first["name"], second["name"]) == ("natural", "flow")
    assert max(natural["y"]) > 1.5 > 1.0 == natural["y"][0]
    assert natural["end"] == pytest.approx([1.0, 0.5], abs=1e-6)

    wind = api.answer("path", told("wind"))
    assert wind["end"] == pytest.approx([0.0, -0.4], abs=1e-9)
    middle = np.argmin(np.abs(np.array(wind["y"]) - 0.55))
    assert wind["x"][middle] < 0.75 - 0.2  # left of the straight line: counter-clockwise

    v = api.answer("uncertainty", told("switch"))["v"]
    assert max(v) > 2 * v[0]
    assert v[-1] == pytest.approx(v[0], rel=0.02)


def test_stories_are_settings_that_the_page_has():
    for story in STORIES.values():
        fields = api.catalogue()["fields"][{"paths": "path"}.get(story.view, story.view)]
        requests.read(fields, story.settings)
        assert story.sentence.count(". ") == 0
        assert story.sentence.endswith(".")
