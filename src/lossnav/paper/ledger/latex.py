"""A reader of the paper's LaTeX: a display as the formulas on the sides of its relations.

This reads the paper's own notation, not LaTeX at large. `sympy.parsing.latex` has neither products
of matrices without a sign for them nor indices, dots, norms, or operators such as nabla.

A letter's name is that of its command; ``\\vec`` and ``\\hat`` and an index t are dropped, dots and
a Delta come first, a tilde and the other indices last: ``dtheta``, ``Dt``, ``g_tilde``, ``theta0``,
``theta_star``, ``r_plus``. The script L is ``Loss``, lambda is ``lam``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

Node = tuple[Any, ...]
_TOKEN = re.compile(r"\\text\{[^}]*\}|\\(?:begin|end)\{\w+\}|\\[A-Za-z]+|\\.|[0-9]+|\S")
_BLANK = {"\\left", "\\right", "\\ ", "\\,", "\\text{, i.e., }"}
_RELATIONS = {"=", ":", "\\approx", "\\propto", "\\leftarrow", "\\sim", "\\xrightarrow", "<"}
_OPEN = {"(": ")", "[": "]", "\\{": "\\}", "{": "}"}
_NAMES = {"\\lambda": "lam", "\\Lambda": "Lam", "L": "Loss", "H": "Entropy", "N": "Normal"}
_MARKS = {"*": "_star", "+": "_plus", "-": "_minus", "\\pm": "_pm", "t": ""}
_ALWAYS = re.compile(r"(Loss'?|f|p|Entropy|D_KL|Normal|J_multi)$")  # before ( they are functions
_SOMETIMES = re.compile(r"(G|J|J_R|V|V_eff|R|H|L|phi|theta[12]?|KE|PE)$")  # before letters alone


class Reader:
    """A recursive descent through the tokens of one side of a relation."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at = tokens, 0
        self.bars = False  # whether a double bar separates, as between two distributions
        self.pending: list[tuple[str, Node]] = []  # terms that were read ahead, after a sum

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.next
        if not token or (wanted and token != wanted):
            raise ValueError(f"There is {token!r} in place of {wanted!r} in {self.tokens}.")
        self.at += 1
        return token

    def group(self) -> list[str]:
        """The tokens of a braced group, or one token."""
        if self.next != "{":
            return [self.take()]
        begin, depth = self.at + 1, 0
        while True:
            depth += {"{": 1, "}": -1}.get(self.take(), 0)
            if depth == 0:
                return self.tokens[begin : self.at - 1]

    def total(self) -> Node:
        """A sum of terms."""
        sign = self.take() if self.next in ("+", "-", "\\pm") else "+"
        node = self.signed(sign, self.term())
        while self.pending or self.next in ("+", "-", "\\pm"):
            sign, term = self.pending.pop(0) if self.pending else (self.take(), self.term())
            node = ("+", node, self.signed(sign, term))
        return node

    @staticmethod
    def signed(sign: str, term: Node) -> Node:
        return {"+": term, "-": ("-", term), "\\pm": ("*", ("name", "pm", ""), term)}[sign]

    def term(self) -> Node:
        node = self.factor()
        while not self.pending and self.begins_factor():
            if self.next == "/":
                self.take()
                node = ("/", node, self.factor())
            else:
                node = ("*", node, self.factor())
        return node

    def begins_factor(self) -> bool:
        token = self.next
        if token == "\\Vert":
            return not self.bars
        if token == "d" and self.tokens[self.at + 1 : self.at + 2] == ["t"]:
            return False  # the end of an integral
        ends = (*"+-,|)]}&.", "\\}", "\\pm", "\\\\", "\\end{cases}", "\\end{pmatrix}")
        return token not in ("", *ends)

    def factor(self) -> Node:
        """A letter, number, bracket or operator, with its powers."""
        node = self.primary()
        while self.next == "^":
            self.take()
            power = self.group()
            if power in (["T"], ["\\dagger"]):
                node = (power[0], node)
            else:
                applied = self.called(node) if node[0] == "name" else node  # as in G^{-1}(theta)
                node = ("^", applied, Reader(power).total())
        return node

    def primary(self) -> Node:
        token = self.next
        if token in _OPEN:
            return self.bracket()
        if token.isdigit():
            return ("number", Fraction(self.take()))
        if token.startswith("\\text"):
            return self.called(("name", self.take()[6:-1].strip("[ .]"), ""))
        command = token.lstrip("\\").replace("begin{", "").rstrip("}")
        special = getattr(self, f"read_{command}", None)
        if special and (token.startswith("\\") or token == "e"):
            self.take()
            read: Node = special()
            return read
        return self.called(self.letter())

    def bracket(self) -> Node:
        end, bars = _OPEN[self.take()], self.bars
        self.bars, ahead, self.pending = False, self.pending, []
        node = self.total()
        self.bars, self.pending = bars, ahead
        self.take(end)
        return node

    def called(self, name: Node) -> Node:
        """A letter, or what it is at the arguments that follow it."""
        always = bool(_ALWAYS.match(name[1]))
        if self.next != "(" or not (always or _SOMETIMES.match(name[1])):
            return name
        begin, bars = self.at, self.bars
        self.take()
        if name[1] == "J_multi" or self.next == "\\{":  # these only name a path
            while self.next != ")":
                self.take() if self.next in (",", ".", "\\{", "\\}") else self.letter()
            self.take(")")
            return name
        self.bars = name[1] == "D_KL"
        arguments = [self.total()]
        while self.next in (",", "|", "\\Vert"):
            self.take()
            arguments.append(self.total())
        self.bars = bars
        self.take(")")
        if always or all(argument[0] == "name" for argument in arguments):
            return ("call", name, arguments)
        self.at = begin  # a product
        return name

    # Letters

    def letter(self) -> Node:
        """("name", its name, its indices)."""
        first, base, mark, indices = self.accented()
        return ("name", first + base + mark, indices)

    def accented(self) -> tuple[str, str, str, str]:
        token = self.take()
        first = mark = indices = ""
        if token in ("\\vec", "\\hat", "\\tilde", "\\dot", "\\ddot"):
            first, base, mark, indices = Reader(self.group()).accented()
            first += {"\\dot": "d", "\\ddot": "dd"}.get(token, "")
            base += "_tilde" * (token == "\\tilde")
        elif token == "\\mathcal":
            base = _NAMES[self.group()[0]]
        elif token == "\\Delta":
            first, base, mark, indices = self.accented()
            return "D" + first, base, mark, indices
        elif re.fullmatch(r"[A-Za-z]|\\[A-Za-z]+", token):
            base = _NAMES.get(token, token.lstrip("\\")) if token.startswith("\\") else token
        else:
            raise ValueError(f"There is {token!r} in place of a letter in {self.tokens}.")
        if self.tokens[self.at : self.at + 3] == ["^", "T", "_"]:
            self.at += 2
            more, own = self.index()
            return first, base, mark + more, indices + own[::-1]
        more, own = self.index()
        if self.next == "'":
            base += self.take()
        return first, base, mark + more, indices + own

    def index(self) -> tuple[str, str]:
        """What an index adds to the name, and the letters i and j in it."""
        if self.next != "_":
            return "", ""
        self.take()
        text = "".join(x for x in self.group() if x not in ("{", "}", "\\vec"))
        text = text.replace("\\Delta", "D")
        if text in _MARKS:
            return _MARKS[text], ""
        if re.fullmatch("[0-9ijt]+", text):
            return re.sub("[ijt]", "", text), re.sub("[0-9t]", "", text)
        return "_" + text, ""

    # Commands, by name

    def read_e(self) -> Node:
        if self.next != "^":
            return ("function", "exp", ("number", Fraction(1)))
        self.take()
        return ("function", "exp", Reader(self.group()).total())

    def read_frac(self) -> Node:
        over, under = self.group(), self.group()
        if under == ["d", "t"]:
            return ("d_dt", Reader(over[1:]).total() if over[1:] else self.factor())
        if over[0] == "\\partial":
            of = Reader(over[1:]).total() if over[1:] else self.factor()
            return ("partial", of, Reader(under[1:]).letter())
        return ("/", Reader(over).total(), Reader(under).total())

    def read_sqrt(self) -> Node:
        return ("function", "sqrt", Reader(self.group()).total())

    def of(self, function: str) -> Node:
        return ("function", function, self.factor())

    read_exp = functools.partialmethod(of, "exp")
    read_log = functools.partialmethod(of, "log")
    read_cos = functools.partialmethod(of, "cos")
    read_sin = functools.partialmethod(of, "sin")

    def read_pi(self) -> Node:
        return ("pi",)

    def read_infty(self) -> Node:
        return ("number", np.inf)

    def read_Vert(self) -> Node:
        self.bars = True
        node = self.total()
        self.bars = False
        self.take("\\Vert")
        return ("norm", node)

    def read_nabla(self) -> Node:
        self.take("_")
        variable = Reader(self.group()).letter()
        return ("partial", self.factor(), variable)

    def read_partial(self) -> Node:
        power = "1"
        if self.next == "^":
            self.take()
            power = self.take()
        _, indices = self.index()
        if power != str(len(indices)):
            raise ValueError(f"A derivative of order {power} has the indices {indices!r}.")
        node = self.factor()
        for index in indices:
            node = ("partial", node, ("name", "theta", index))
        return node

    def limits(self) -> tuple[list[str], list[str]]:
        """What stands below and above a sum, an integral or a limit."""
        below: list[str] = []
        above: list[str] = []
        while self.next in ("_", "^"):
            if self.take() == "_":
                below = self.group()
            else:
                above = self.group()
        return below, above

    def read_int(self) -> Node:
        below, above = self.limits()
        body = self.total()
        self.take("d")
        self.take("t")
        return ("int", Reader(below).total(), Reader(above).total(), body)

    def read_lim(self) -> Node:
        below, _ = self.limits()
        return ("lim", "".join(below), self.total())

    def read_mathbb(self) -> Node:
        self.group()
        self.limits()
        return ("mean", self.bracket())

    def read_sum(self) -> Node:
        """A sum goes on to the last term that has its index."""
        below, above = self.limits()
        sign = self.take() if self.next == "-" else "+"
        terms = [(sign, self.term())]
        while self.pending or self.next in ("+", "-"):
            terms.append(self.pending.pop(0) if self.pending else (self.take(), self.term()))
        index = below[0]
        ends = [n for n, (_, term) in enumerate(terms) if has_index(term, index)]
        inside, self.pending = terms[: max(ends) + 1], terms[max(ends) + 1 :]
        body = functools.reduce(lambda a, b: ("+", a, b), [self.signed(*t) for t in inside])
        bounds = (Reader(below[2:]).total(), Reader(above).total()) if above else (None, None)
        return ("sum", index, *bounds, body)

    def rows(self, end: str) -> list[list[Node]]:
        rows: list[list[Node]] = [[self.total()]]
        while self.next != end:
            token = self.take()
            if end == "\\end{cases}" and token == "&":  # when the case applies, in words
                while self.next not in ("\\\\", end):
                    self.take()
            elif token == "&":
                rows[-1].append(self.total())
            else:
                rows.append([self.total()])
        self.take(end)
        return rows

    def read_cases(self) -> Node:
        return ("cases", [row[0] for row in self.rows("\\end{cases}")])

    def read_pmatrix(self) -> Node:
        return ("matrix", self.rows("\\end{pmatrix}"))


def parts_of(node: Any) -> Iterator[Node]:
    """A node and all below it."""
    if isinstance(node, list):
        for part in node:
            yield from parts_of(part)
    elif isinstance(node, tuple):
        yield node
        for part in node[1:]:
            yield from parts_of(part)


def has_index(node: Node, index: str) -> bool:
    """Whether a sum over the index goes on to this term; one over times, to all terms."""
    names = [part for part in parts_of(node) if part[0] == "name"]
    return index not in "ij" or any(index in name[2] for name in names)


def free_indices(node: Any) -> set[str]:
    """The indices that no sum in the node runs over."""
    if isinstance(node, list):
        return set().union(*map(free_indices, node))
    if not isinstance(node, tuple):
        return set()
    if node[0] == "name":
        return set(node[2])
    return set().union(*map(free_indices, node[1:])) - ({node[1]} if node[0] == "sum" else set())


def statements(latex: str) -> list[list[Node]]:
    """The sides of each relation of a display.

    Examples:
        >>> statements(r"x = 2 y")
        [[('name', 'x', ''), ('*', ('number', Fraction(2, 1)), ('name', 'y', ''))]]
    """
    text = re.sub(r"\\hspace\{[^}]*\}|\\implies", r" \\next ", latex)
    text = re.sub(r"\\(?:begin|end)\{aligned\}|\\text\{ for \}.*", "", text)
    nested = r"(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*"
    text = re.sub(rf"\\textcolor\{{red\}}\{{({nested})\}}", r"\1", text).replace("{}", "")
    lines: list[list[list[str]]] = [[[]]]
    depth = 0
    for token in _TOKEN.findall(text):
        depth += token.startswith(("{", "\\begin")) - token.startswith(("}", "\\end"))
        if token in _BLANK or (token == "&" and not depth):
            continue
        if depth == 0 and token in ("\\next", "\\\\"):
            lines.append([[]])
        elif depth == 0 and token in _RELATIONS:
            if lines[-1] == [[]] and len(lines) > 1:
                lines.pop()  # the line continues the one before it
            if token == "<":  # only says that the side before it is finite
                break
            if lines[-1][-1] or token != "=":
                lines[-1].append([])
        elif depth == 0 and token == "+" and lines[-1] == [[]]:
            lines.pop()
            lines[-1][-1].append(token)
        else:
            lines[-1][-1].append(token)
    return [[_side(side) for side in line if side] for line in lines if line != [[]]]


def _side(tokens: list[str]) -> Node:
    while tokens[-1] in (".", ","):
        tokens = tokens[:-1]
    if tokens[0] == "{" and "\\to" in tokens[: tokens.index("}")]:  # above an arrow
        tokens = tokens[tokens.index("}") + 1 :]
    reader = Reader(tokens)
    node = reader.total()
    if reader.next:
        raise ValueError(f"{reader.tokens[reader.at :]} is left over of {tokens}.")
    return node
