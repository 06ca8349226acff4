"""Built-in problems and TOML files: what they hold, and each refusal in one sentence."""

import math
import tomllib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lossnav as ln
from lossnav.problem.builtin import ProblemError, builtin_problems, problem

GOOD = """
description = "A tilted well in a curved space"
eta = 0.5
gamma = 2
theta0 = [0.5, -1]

[loss]
expression = "(x**2 - 1)**2 + y**2 - x/2"
variables = ["x", "y"]

[metric]
type = "expression"
entries = [["1 + y**2", "0"], ["0", "2"]]

[drift]
type = "expression"
entries = ["y", "-sin(x)"]
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="my.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("name", builtin_problems())
def test_each_builtin_has_a_finite_start(name):
    found = problem(name)
    objective = found.objective
    assert found.name == name
    assert found.description == builtin_problems()[name]
    assert found.theta0.shape == (objective.dim,)
    assert np.isfinite(objective.loss(found.theta0))
    assert np.isfinite(objective.kinetic(found.theta0, found.theta0))


def test_settings_of_the_figures():
    """The constants stated in the paper's captions and figures."""
    rotation, decay = problem("rotation").objective, problem("decay").objective
    assert np.array_equal(rotation.drift_at([1.0, 2.0]), [-20.0, 10.0])
    assert np.array_equal(decay.drift_at([1.0, 2.0]), [-10.0, -20.0])
    assert np.array_equal(problem("metric").objective.metric_at([0, 0]), np.diag([0.02, 1.0]))
    assert np.array_equal(rotation.loss.grad([0.0, -0.5]), [0.0, 0.0])
    assert (rotation.eta, rotation.k, rotation.gamma) == (1.0, 1.0, 0.0)


def test_file_with_everything(write):
    found = problem(write(GOOD))
    x, y = 0.3, 0.7
    objective = found.objective
    assert found.name == "my"
    assert found.description.startswith("A tilted")
    assert (objective.eta, objective.k, objective.gamma) == (0.5, 1.0, 2.0)
    assert objective.names == ("x", "y")
    assert np.array_equal(found.theta0, [0.5, -1.0])
    assert objective.loss([x, y]) == pytest.approx((x**2 - 1) ** 2 + y**2 - x / 2, rel=1e-15)
    assert objective.metric_at([x, y]) == pytest.approx(np.diag([1 + y**2, 2.0]), rel=1e-15)
    assert objective.drift_at([x, y]) == pytest.approx([y, -np.sin(x)], rel=1e-15)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("[loss]\ntype='double-well'\nd=-1", ln.DoubleWell(d=-1)),
        ("[loss]\ntype='quadratic'\nH=[[2,0],[0,1]]\nminimum=[1,0]", ln.Quadratic([2, 1], minimum=[1, 0])),
        ("[loss]\ntype='quadratic'\nH=[2,1]\ng=[1,0]", ln.Quadratic([2, 1], g=[1, 0])),
        ("[loss]\ntype='rosenbrock'", ln.Rosenbrock(2)),
        ("loss = {type='himmelblau'}", ln.Himmelblau()),
        ("loss.type='mueller-brown'", ln.MuellerBrown()),
    ],
)  # fmt: skip
def test_each_loss_type(write, body, expected):
    found = problem(write(body))
    at = [0.3, -0.2]
    assert found.theta0 is None
    assert found.objective.loss(at) == pytest.approx(expected(at), rel=1e-14)


@pytest.mark.parametrize(
    ("tables", "metric", "drift"),
    [
        ("metric={type='constant', G=[2, 3]}", [[2, 0], [0, 3]], [0, 0]),
        ("metric={type='fisher-gaussian', n=1}", [[2, 0], [0, 2]], [0, 0]),
        ("drift={type='decay', j=0.5}", np.eye(2), [-0.5, -0.25]),
        ("drift={type='rotation', omega=2}", np.eye(2), [-1, 2]),
        ("drift={type='rotation', J=[[0, -2], [2, 0]]}", np.eye(2), [-1, 2]),
        ("drift={type='linear', J=[[1, 1], [0, 1]], c=[1, 0]}", np.eye(2), [2.5, 0.5]),
    ],
)
def test_each_geometry(write, tables, metric, drift):
    objective = problem(write(f"{tables}\n[loss]\ntype='himmelblau'")).objective
    assert np.array_equal(objective.metric_at([1.0, 0.5]), metric)
    assert np.array_equal(objective.drift_at([1.0, 0.5]), drift)


def test_discount_is_a_formula_in_t(write):
    objective = problem(write("discount='1/(1 + t)**2'\n[loss]\ntype='himmelblau'")).objective
    assert objective.discount_at([0.0, 1.0]) == pytest.approx([1.0, 0.25], rel=1e-15)


LOSS = "[loss]\ntype = 'himmelblau'\n"
REFUSED = {
    "eta = -1\n" + LOSS: r"my.toml, line 1: eta is -1, but it must be greater than zero\.",
    "\nk = nan\n" + LOSS: r"my.toml, line 2: k is nan, but it must be finite\.",
    "gamma = -0.1\n" + LOSS: r"line 1: gamma is -0.1, but it must be zero or more\.",
    "gama = 1\n" + LOSS: r"my.toml, line 1: there is no key 'gama' here; did you mean 'gamma'\?",
    LOSS + "quux = 1": r"line 3: there is no key 'quux' here; known: type\.",
    "eta = 'fast'\n" + LOSS: r"line 1: eta must be a number, but it is 'fast'\.",
    "eta = true\n" + LOSS: r"line 1: eta must be a number, but it is True\.",
    "eta = 1" + "0" * 400 + "\n" + LOSS: r"line 1: eta is inf, but it must be finite",
    "eta = 1" + "0" * 5000 + "\n" + LOSS: r"my.toml is not valid TOML: .*limit.*\.",
    "loss = 3": r"line 1: loss must be a table, but it is 3\.",
    "eta = 1": r"my.toml: the file needs loss, a table\.",
    "[loss]": r"line 1: \[loss\] needs a type: one of double-well, .*\.",
    "[loss]\ntype = 'double-wel'": r"line 2: There is no loss type named 'double-wel'\. Did you mean 'double-well'\?",
    "[loss]\ntype = 'quadratic'": r"line 1: \[loss\] needs H, a number or an array of them\.",
    "[loss]\ntype = 'quadratic'\nH = [[1, 2], [3, 4]]": r"line 2: H is not symmetric: .*",
    "[loss]\ntype = 'quadratic'\nH = [[1, 2], [3]]": r"line 2: H must be an array of real numbers.*",
    "[loss]\ntype = 'rosenbrock'\nD = 100000000": r"line 3: D must be a whole number from 1 to 256, but it is 100000000\.",
    "[loss]\ntype = 'rosenbrock'\nD = 1": r"line 2: Rosenbrock needs two or more coordinates, but D is 1\.",
    "[loss]\nexpression = 'x'": r"line 1: \[loss\] needs variables, a list of texts\.",
    "[loss]\nexpression = 'x + y'\nvariables = ['x']": r"line 2: 'y' is not a declared variable.*",
    "[loss]\nexpression = '__import__(1)'\nvariables = ['x']": r"line 2: '__import__' is not a known function.*",
    "[loss]\nexpression = '9**9**9**9'\nvariables = ['x']": r"line 2: .*at most 64 is allowed\.",
    LOSS + "[metric]\ntype = 'constant'\nG = [1, -1]": r"line 4: G is not positive definite.*",
    LOSS + "[metric]\ntype = 'constant'\nG = [1, 1, 1]": r"my.toml: The inputs disagree on the number of coordinates: the loss has 2, the metric has 3\.",
    LOSS + "[metric]\ntype = 'expression'\nentries = [['1', 'theta1'], ['0', '1']]": r"line 5: The metric is not symmetric.*",
    LOSS + "[metric]\ntype = 'expression'\nentries = ['1', '2']": r"line 5: entries must be a list of rows.*",
    LOSS + "[metric]\ntype = 'expression'\nentries = [['1']]": r"line 5: The metric returned shape \(1, 1\), .*",
    LOSS + "[drift]\ntype = 'rotation'": r"line 4: a rotation needs omega.*",
    LOSS + "[drift]\ntype = 'expression'\nentries = ['theta3', '0']": r"line 5: 'theta3' is not a declared variable.*",
    LOSS + "[drift]\ntype = 'decay'\nj = -1": r"line 4: The decay rate j is -1.*",
    "theta0 = [1, 2, 3]\n" + LOSS: r"line 1: theta0 has 3 coordinates, but the problem has 2\.",
    "theta0 = [1, inf]\n" + LOSS: r"line 1: theta0 is inf at index \(1,\), but it must be finite\.",
    "theta0 = ['a']\n" + LOSS: r"line 1: theta0 must be a number or an array of them, but it is \['a'\]\.",
    "gamma = 1\ndiscount = '1/(1+t)'\n" + LOSS: r"my.toml: Give gamma or discount, not both.*",
    "discount = '1/s'\n" + LOSS: r"line 1: 's' is not a declared variable \(declared: t\)\.",
    "eta = \n": r"my.toml is not valid TOML: .*line 1.*",
    "a = 1\n\nb = [1,": r"my.toml is not valid TOML: .*line 3.*",
    "a = " + "[" * 60_000: r"my.toml is not valid TOML: it is nested too deeply\.",
    b"eta = 1\n# caf\xe9": r"my.toml, line 2: this is not UTF-8; save it as UTF-8\.",
    "#" * 70_000: r"my.toml is larger than 64 KiB, the most a problem may be\.",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_refusals(write, text):
    with pytest.raises(ProblemError, match=REFUSED[text]) as caught:
        problem(write(text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("double-wel", "There is no built-in problem named 'double-wel'. Did you mean 'double-well'?"),
        ("zzz", "Known: adaptive, anisotropic, "),
        ("", "There is no built-in problem named ''"),
        ("no/such.toml", "There is no file no/such.toml: check the path."),
        ("a\0b.toml", "There is no built-in problem named"),
        ("x" * 5000, "There is no built-in problem named"),
        ("x" * 5000 + ".toml", "cannot be read: File name too long."),
        (".", "There is no built-in problem"),
        ("/", "There is no built-in problem"),
    ],
)  # fmt: skip
def test_names_that_lead_nowhere(name, message):
    with pytest.raises(ProblemError) as caught:
        problem(name)
    assert message in str(caught.value)


def test_folder_and_wrong_type(tmp_path):
    with pytest.raises(ProblemError, match=r"is not a file: give a TOML file"):
        problem(tmp_path)
    with pytest.raises(TypeError, match=r"A problem is a name or a path, but a int was given\."):
        problem(3)


def value_of(formula, names, at):
    """A formula computed by Python itself, which may be done here since the library let it pass."""
    known = {name: getattr(math, name) for name in ("sin", "cos", "tan", "exp", "log", "pi")}
    known |= dict(zip(names, map(np.float64, at), strict=True))
    with np.errstate(all="ignore"):
        return float(eval(formula.strip(), known))


def agrees_with_its_text(found, raw):
    """What was read, against what tomllib and Python's own arithmetic make of the same bytes."""
    values, at = tomllib.loads(raw.decode()), (0.3, 0.7)
    names, objective = values["loss"]["variables"], found.objective
    assert found.description == values.get("description", "")
    assert objective.names == tuple(names)
    usual = {"eta": 1, "k": 1, "gamma": 0}
    for name, number in usual.items():
        assert getattr(objective, name) == values.get(name, number)
    assert (found.theta0 is None) == ("theta0" not in values)
    if found.theta0 is not None:
        assert found.theta0.tolist() == values["theta0"]
    numbers = [objective.loss(at), *objective.metric_at(at).ravel(), *objective.drift_at(at)]
    texts = [values["loss"]["expression"]]
    texts += [text for row in values["metric"]["entries"] for text in row]
    texts += values["drift"]["entries"]
    expected = [value_of(text, names, at) for text in texts]
    assert numbers == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [("0.5\n", "7.5\n"), ("eta", "k"), ("gamma", "# gamma"), ("theta0", "#theta0"), ("x/2", "y/3"), ("1 + y", "2 + x"),
     ("-sin(x)", "x*cos(y)"), ("A tilted", "Another"), ('"2"', '"3"')],
)  # fmt: skip
def test_a_changed_file_means_what_it_says_now(write, old, new):
    raw = GOOD.replace(old, new, 1).encode()
    agrees_with_its_text(problem(write(raw)), raw)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    position=st.integers(0, len(GOOD) - 1),
    change=st.binary(max_size=3) | st.text('0123456789.+-*/xy #="[]', max_size=3).map(str.encode),
)
def test_a_damaged_file_is_read_as_it_stands_or_refused(write, position, change):
    """Any few bytes of a good file replaced: what the bytes say now, or one ProblemError that names the file."""
    raw = GOOD.encode()
    raw = raw[:position] + change + raw[position + len(change) :]
    path = write(raw)
    try:
        found, refused = problem(path), ""
    except ProblemError as error:
        found, refused = None, str(error)
    if found is not None:
        agrees_with_its_text(found, raw)
        return
    assert refused.startswith((f"{path}, line ", f"{path}: ", f"{path} is not valid TOML: "))
    assert refused.endswith((".", "?"))
    assert "\n" not in refused
