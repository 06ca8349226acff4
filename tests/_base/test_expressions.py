"""Formulas from text: what is read, what is refused, and that nothing else can happen."""

import ast
import math

import numpy as np
import pytest
import sympy
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from effort import calls, watched
from lossnav._base.expressions import FUNCTIONS, ExpressionError, check_names, parse
from lossnav._base.symbolic import Abs
from lossnav.problem.landscapes import Expression

X, Y = sympy.symbols("x y", real=True)
SYMBOLS = {"x": X, "y": Y}


def read_or_refuse(text):
    """The formula, or None when refused; anything else is a failure, and so are numbers that nobody can compute with."""
    with watched():
        try:
            expr, refused = parse(text, SYMBOLS), ""
        except ExpressionError as error:
            expr, refused = None, str(error)
    assert "\n" not in refused
    if expr is None:
        return None
    assert isinstance(expr, sympy.Expr)
    assert expr.free_symbols <= {X, Y}
    exponents = [power.exp for power in expr.atoms(sympy.Pow) if power.exp.is_number]
    assert all(abs(float(exponent)) <= 64 for exponent in exponents)
    assert all(max(abs(n.p), n.q) <= 1e100 for n in expr.atoms(sympy.Rational))
    return expr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(x**2 - 1)**2 + y**2 - x/2", (X**2 - 1) ** 2 + Y**2 - X / 2),
        ("0.1*x", X / 10),
        ("1e-3*x", X / 1000),
        ("-+-x", X),
        ("2*pi", 2 * sympy.pi),
        ("abs(x)", Abs(X)),
        ("x**-2", X**-2),
        ("x**0.5", sympy.sqrt(X)),
        ("2**x", 2**X),
        (" x\t+ y ", X + Y),
        ("exp(-x**2)*tanh(y)", sympy.exp(-(X**2)) * sympy.tanh(Y)),
        ("x**8*y**40", X**8 * Y**40),
        ("1_000", sympy.Integer(1000)),
    ],
)
def test_what_is_read(text, expected):
    assert parse(text, SYMBOLS) == expected


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("abs(log(x))", lambda x, y: abs(np.log(x))),
        ("abs(x - y**(1/3))", lambda x, y: abs(x - y ** (1 / 3))),
        ("exp(abs(log(x*y)))", lambda x, y: np.exp(abs(np.log(x * y)))),
        ("log(1e30)*x**2", lambda x, y: 30 * np.log(10) * x**2),
        ("(1e20)**x", lambda x, y: 1e20**x),
        (f"{'7' * 64}**.57657*1e-36*x*y", lambda x, y: float("7" * 64) ** 0.57657 * 1e-36 * x * y),
        ("cosh(y**.57657*y)", lambda x, y: np.cosh(y**1.57657)),
        ("sqrt(tanh(65))**(x*y)", lambda x, y: 1.0 + 0 * x),
    ],
)
def test_derivatives_of_what_sympy_finds_hard(text, function):
    """Absolute values of formulas that may be complex, and numbers of many digits."""
    loss, at, h = Expression(text, ["x", "y"]), np.array([0.7, 1.9]), 1e-4
    assert loss(at) == pytest.approx(function(*at), rel=1e-12)
    for i, step in enumerate(h * np.eye(2)):
        slope = (function(*(at + step)) - function(*(at - step))) / (2 * h)
        assert loss.grad(at)[i] == pytest.approx(slope, rel=1e-5, abs=1e-7)
        bend = (loss.grad(at + step) - loss.grad(at - step)) / (2 * h)
        assert loss.hess(at)[i] == pytest.approx(bend, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "text", ["(-exp(y/y))**(log(x))", "log(sin(sin(65)*12345678901234567890)**(-y)) + x*y"]
)
def test_a_power_of_a_negative_number_is_nan(text):
    loss = Expression(text, ["x", "y"])
    assert np.isnan(loss([0.5, 1.3]))
    assert np.isnan(loss.grad([0.5, 1.3])).any()


def test_a_power_of_zero_has_no_derivative():
    loss = Expression("(abs(log(x))*0**y)**acos(y)", ["x", "y"])
    assert np.isnan(loss.grad([0.5, -0.25])).all()


REFUSED = {
    "sin(cos(sin(cos(sin(cos(sin(cos(sin(x)))))))))": "more than 8 deep",
    "(x + 2)**(9999999 - y)": r"exponent 1e\+07; at most 64",
    "": r"The formula is empty\.",
    "x^2": r"Write powers as \*\* instead of \^ in 'x\^2'\.",
    "x.real": r"'x.real' is not allowed in a formula\.",
    "x[0]": r"'x\[0\]' is not allowed",
    "().__class__": r"is not allowed",
    "__import__('os')": r"'__import__' is not a known function\. Known: abs, ",
    "eval('1')": r"'eval' is not a known function",
    "(lambda: 1)()": r"is not allowed",
    "exp(*[x])": r"is not allowed",
    "exp(x, y)": r"is not allowed",
    "exp(x=1)": r"is not allowed",
    "exp()": r"is not allowed",
    "exp": r"exp is a function: write exp\(\.\.\.\)\.",
    "sum(i for i in x)": r"'sum' is not a known function",
    "[x for x in (1, 2)]": r"is not allowed",
    "(x := 1)": r"is not allowed",
    "f'{x}'": r"is not allowed",
    "'x'": r"is not allowed",
    "x if y else 1": r"is not allowed",
    "x < y": r"is not allowed",
    "x and y": r"is not allowed",
    "x // y": r"is not allowed",
    "x % 2": r"is not allowed",
    "x @ y": r"is not allowed",
    "~x": r"is not allowed",
    "not x": r"is not allowed",
    "1j": r"is not allowed",
    "True": r"is not allowed",
    "...": r"is not allowed",
    "z + 1": r"'z' is not a declared variable \(declared: x, y\)\.",
    "x; y": r"is not a formula: ",
    "x +": r"is not a formula: ",
    "x\0": r"is not a formula: ",
    "θ": r"The character 'θ' is not allowed; write formulas in ASCII\.",
    "x" * 2001: r"The formula has 2001 characters; at most 2000 are allowed\.",
    "(" * 300 + "x" + ")" * 300: r"is not a formula: ",
    "-" * 200 + "x": r"nested more than 50 deep",
    "x" + "+x" * 400: r"The formula has more than 500 parts: split it up\.",
    "9**9**9**9": r"at most 64 is allowed\.",
    "x**65": r"The power in 'x\*\*65' has exponent 65; at most 64 is allowed\.",
    "x**(8*8 + 1)": r"has exponent 65",
    "x**40*x**40": r"contains a power 80; at most 64 is allowed\.",
    "(x**16)**16*x": r"contains a power 257; at most 64",
    "((9*x)**64)**64": r"multiply up to .*; at most 256 is allowed\.",
    "(1.0000001**64)**64": r"multiply up to 4.1e\+03; at most 256",
    "sqrt(sqrt(1.0000001**256)**256)": r"'1\.0000001\*\*256' has exponent 256; at most 64 is allowed",
    "exp(1e50*log(3*x))": r"is a power with exponent 1e\+50; at most 64",
    "exp(1)**(1e50*log(3*x))": r"is a power with exponent 1e\+50; at most 64",
    "exp(x + 1e50*log(3*x))": r"is a power with exponent 1e\+50; at most 64",
    "x**((y + 1e6) - y)": r"has exponent 1e\+06; at most 64",
    "((x + 9 - x)**64)**(x - x + 64)": r"multiply up to 4.1e\+03; at most 256 is allowed",
    "1e400": r"The number '1e400' is outside 1e-100 to 1e\+100\.",
    "1e-320*x": r"The number '1e-320' is outside",
    "1" + "0" * 150: r"is outside 1e-100 to 1e\+100",
    "(1e-90)**64": r"is not zero or a real number of size 1e-100 to 1e\+100\.",
    "(1e90*x)**4": r"multiplies out to a number of 1196 bits: use smaller powers\.",
    "1/0": r"'1/0' is not zero or a real number",
    "x/0": r"'x/0' divides by zero\.",
    "x/(y - y)": r"'x/\(y - y\)' divides by zero\.",
    "log(0)": r"is not zero or a real number",
    "sqrt(-1)": r"is not zero or a real number",
    "asin(2 + x - x)": r"is not zero or a real number",
    "x**asin(x - x + 2)": r"is not zero or a real number",
    "(-8)**(1/3)": r"is not zero or a real number",
    "sqrt(-(x**2))": r"is not a finite real number anywhere\.",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(text):
    with watched(), pytest.raises(ExpressionError, match=REFUSED[text]) as caught:
        parse(text, SYMBOLS)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("text", [None, 3, b"x", ["x"]])
def test_only_text_is_a_formula(text):
    with pytest.raises(ExpressionError, match=r"A formula must be text, but a \w+ was given\."):
        parse(text, SYMBOLS)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("xy", r"Variables must be a list of names, such as \['x', 'y'\]; got 'xy'\."),
        ([], r"Variables must be a list of names"),
        (["x", "x"], r"A variable is declared twice in \['x', 'x'\]\."),
        (["2x"], r"'2x' cannot be a variable: use a short name such as x1\."),
        (["lambda"], r"'lambda' cannot be a variable"),
        (["__class__"], r"'__class__' cannot be a variable"),
        (["θ"], r"'θ' cannot be a variable"),
        ([3], r"3 cannot be a variable"),
        (["a" * 33], r"cannot be a variable"),
        (["exp"], r"'exp' is a function or constant; choose another variable\."),
        ([f"x{i}" for i in range(65)], r"65 variables were declared; at most 64\."),
    ],
)
def test_names_that_cannot_be_variables(names, message):
    with pytest.raises(ExpressionError, match=message):
        check_names(names)


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=60))
@example("x\x00y")
@example("\x0cx")
@example("x\r\n+y")
@example("x\\\n+y")
@example("﻿x")
def test_any_text_is_read_or_refused(text):
    read_or_refuse(text)


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="xy0123456789.e+-*/() ,^=:[]{}'\"_#\n\\;@%~!<>&|", max_size=50))
def test_formula_like_text_is_read_or_refused(text):
    read_or_refuse(text)


def python_expressions():
    """Python of every kind, allowed or not, nested in each other."""
    leaves = st.sampled_from(
        ["x", "y", "z", "0", "1", "7", "64", "0.1", "1e99", "1e-99", "pi", "9**9", "None", "'s'",
         "1j", "f'{x}'", "x.y", "...", "__builtins__", "1e400", "exp", "b'1'", "(x-x)", "10**99"]
    )  # fmt: skip
    shapes = [
        "({0})+({1})", "({0})-({1})", "({0})*({1})", "({0})/({1})", "({0})**({1})", "-({0})",
        "+({0})", "({0})**64", "({0})**-3", "({0})**0.5", "exp(99*log({0}))", "exp({0}*log({1}))",
        *(f"{name}({{0}})" for name in FUNCTIONS), "({0}).real", "({0})[{1}]", "({0})({1})",
        "exp(*({0}))", "exp(**({0}))", "exp({0},{1})", "[q for q in ({0})]", "lambda: ({0})",
        "(q:=({0}))", "({0}) if ({1}) else 1", "({0})<({1})", "({0},{1})", "{{({0}):({1})}}",
        "({0})//({1})", "({0})@({1})", "not ({0})", "f'{{{0}}}'", "({0}) and ({1})", "await ({0})",
        "(yield ({0}))",
    ]  # fmt: skip
    return st.recursive(
        leaves,
        lambda inner: st.builds(str.format, st.sampled_from(shapes), inner, inner),
        max_leaves=12,
    )


@settings(max_examples=600, deadline=None)
@given(python_expressions())
def test_any_python_is_read_or_refused(text):
    """No call, attribute or comprehension gets through, whatever it is wrapped in."""
    expr = read_or_refuse(text)
    if expr is not None:
        kinds = {type(node).__name__ for node in ast.walk(ast.parse(text.strip(), mode="eval"))}
        assert not kinds & {"Attribute", "Subscript", "Lambda", "ListComp", "NamedExpr", "IfExp",
                            "JoinedStr", "Compare", "Starred", "Tuple", "Dict", "Await", "Yield"}  # fmt: skip


def nest(shape, times):
    text = "x"
    for _ in range(times):
        text = shape.format(text)
    return text


@pytest.mark.parametrize(
    "shape",
    ["({}**64)", "({}*9)**64", "sqrt({})**64", "exp(64*log({}))", "abs({})**3", "({}+1.0000001)**9",
     "sin({})**2", "(1/{}+1/3)", "exp(exp({}))", "abs(abs({})-1)", "sqrt(abs({}))", "log({})",
     "2**({})", "cos({})*sin({})", "({}-{})**64", "({}/{}+2)**64", "atan(tan({}))",
     "exp(log({})*log({}))", "tan(asin({}))", "cosh(log({}))"],
)  # fmt: skip
@pytest.mark.parametrize("times", [2, 4, 8, 20, 48])
def test_nests_stay_small(shape, times):
    """SymPy writes some functions of functions with their argument twice, or works long at them."""
    text = nest(shape.replace("{}", "{0}"), min(times, 8) if shape.count("{}") > 1 else times)
    found = []
    calls(lambda: found.append(read_or_refuse(text)), most=3_000_000)
    if found[0] is not None:
        assert sum(1 for _ in sympy.preorder_traversal(found[0])) < 4000


def allowed_trees():
    """Pairs of text and a Python function of (x, y) that computes it directly."""
    leaves = st.sampled_from(
        [("x", lambda x, y: x), ("y", lambda x, y: y), ("pi", lambda x, y: math.pi)]
    ) | st.integers(1, 9).map(lambda n: (str(n), lambda x, y: float(n)))
    leaves |= st.floats(0.01, 10).map(lambda v: (repr(v), lambda x, y: v))
    operators = st.sampled_from(
        [("+", lambda a, b: a + b), ("-", lambda a, b: a - b), ("*", lambda a, b: a * b),
         ("/", lambda a, b: a / b)]
    )  # fmt: skip

    def extend(inner):
        binary = st.builds(
            lambda op, a, b: (
                f"({a[0]} {op[0]} {b[0]})", lambda x, y: op[1](a[1](x, y), b[1](x, y)),
            ),
            operators, inner, inner,
        )  # fmt: skip
        function = st.builds(
            lambda name, a: (f"{name}({a[0]})", lambda x, y: FUNCTIONS[name](a[1](x, y))),
            st.sampled_from(sorted(FUNCTIONS)),
            inner,
        )
        power = st.builds(
            lambda a, n: (f"({a[0]})**{n}", lambda x, y: a[1](x, y) ** n), inner, st.integers(-3, 4)
        )
        return binary | function | power

    return st.recursive(leaves, extend, max_leaves=8)


@settings(max_examples=300, deadline=None)
@given(allowed_trees(), st.floats(0.1, 3), st.floats(0.1, 3))
def test_a_formula_means_what_it_says(tree, x, y):
    """The text through SymPy against the same tree computed by plain floating point."""
    text, compute = tree
    try:
        expected = compute(x, y)
    except (ValueError, OverflowError, ZeroDivisionError):
        assume(False)
    assume(isinstance(expected, float) and 1e-6 < abs(expected) < 1e6)
    # Where a tiny change of x moves the answer, floating point is no judge.
    near = []
    for shift in (1 + 1e-9, 1 - 1e-9):
        try:
            near.append(compute(x * shift, y * shift))
        except (ValueError, OverflowError, ZeroDivisionError):
            assume(False)
    assume(all(isinstance(v, float) for v in near))
    assume(np.ptp([*near, expected]) < 1e-6 * abs(expected))
    expr = read_or_refuse(text)
    assume(expr is not None)
    value = complex(expr.subs({X: sympy.Float(x, 30), Y: sympy.Float(y, 30)}).evalf(20))
    assert value.real == pytest.approx(expected, rel=1e-5)
    assert abs(value.imag) < 1e-5 * abs(expected)
