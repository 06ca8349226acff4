"""How fast and how exact the solvers of optimal paths are, against three others.

The peers: the paper's own way (App. B: gradient descent in torch on a sum over steps), SciPy's
``solve_bvp`` on the Euler-Lagrange equations with exact Jacobians, and CasADi with IPOPT on the same
sum with exact Hessians (``pip install lossnav[bench]``). Each pair runs in turn, several times, on one
thread; a ratio is one of minima. The path through 10,000 parameters is in matrix_free.py, the policy
in policy.py.

    python benchmarks/trajectory.py [row ...]      rows: grid nodes bvp casadi growth velocity
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import sys  # noqa: E402
import time  # noqa: E402

import numpy as np  # noqa: E402
from scipy.integrate import solve_bvp  # noqa: E402

import lossnav as ln  # noqa: E402

START, MINIMUM = np.array([-0.6, 0.55]), np.array([1.0574537707386316, 0.0])
HORIZON, GAMMA, STEPS = 4.0, 0.1, 50
TRUE_J = 0.61943561774


def interleaved(rounds, **runs):
    """The least time of each, in turn, and what each returned last."""
    times, results = dict.fromkeys(runs, np.inf), {}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            results[name] = run()
            times[name] = min(times[name], time.perf_counter() - began)
    return times, results


def timed(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def say(what, value, bound, *, least=True, note=""):
    holds = value >= bound if least else value <= bound
    sign = ">=" if least else "<="
    verdict = "holds" if holds else "MISSES"
    print(f"{what:<62}{value:>12.4g}  {sign} {bound:<8g}{verdict}  {note}", flush=True)


def well():
    return ln.Objective(ln.DoubleWell(), gamma=GAMMA)


def descend(target, *, mean=True, most=400_000):
    """App. B in torch: points on a straight line, plain gradient descent at 1e-2, until ``target``.

    The authors' notebook descends the mean of the running cost, J/T, and so does this.
    """
    import torch

    dt = HORIZON / STEPS
    line = np.linspace(0, 1, STEPS + 1)[:, None]
    first, *_, last = torch.tensor(START + line * (MINIMUM - START))
    inner = torch.tensor((START + line * (MINIMUM - START))[1:-1], requires_grad=True)
    weight = torch.exp(-GAMMA * dt * torch.arange(STEPS, dtype=torch.float64))
    optimizer = torch.optim.SGD([inner], lr=1e-2)
    for iteration in range(most):
        theta = torch.cat([first[None], inner, last[None]])
        v = (theta[1:] - theta[:-1]) / dt
        x, y = theta[:-1, 0], theta[:-1, 1]
        running = (v**2).sum(1) / 2 + (x**2 - 1) ** 2 + y**2 - x / 2
        J = dt * (running * weight).sum()
        if iteration % 100 == 0 and J.item() <= target:
            return iteration
        optimizer.zero_grad()
        (J / HORIZON if mean else J).backward()
        optimizer.step()
    raise RuntimeError(f"gradient descent did not reach {target} in {most} steps")


def grid():
    """Fig. 1 on the paper's grid, to within 1e-6 of the grid's optimum."""
    import torch

    torch.set_num_threads(1)
    plan = ln.Discrete(well(), STEPS, HORIZON / STEPS)
    _, best = plan.minimise(START, MINIMUM)
    model = ln.TorchLoss(lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2 - x[0] / 2, ["x", "y"])
    traced = ln.Discrete(ln.Objective(model, gamma=GAMMA), STEPS, HORIZON / STEPS)
    ours = {"analytic": np.inf, "torch": np.inf}

    def repeat(name, plan, times):
        for _ in range(times):
            ours[name] = min(ours[name], timed(lambda: plan.minimise(START, MINIMUM)))

    times, steps = interleaved(
        3,
        paper=lambda: descend(best + 1e-6),
        analytic=lambda: repeat("analytic", plan, 40),
        torch=lambda: repeat("torch", traced, 5),
    )
    paper = times["paper"]
    note = f"{paper:.2f} s, {steps['paper']:,} steps, against {1e3 * ours['analytic']:.2f} ms"
    say("paper's gradient descent / ours, analytic", paper / ours["analytic"], 3000, note=note)
    note = f"against {1e3 * ours['torch']:.1f} ms"
    say("paper's gradient descent / ours, torch.func", paper / ours["torch"], 100, note=note)
    other = timed(lambda: descend(best + 1e-6, mean=False)) / ours["analytic"]
    print(f"  (the same rate on J itself in place of the mean, four times as large: {other:.0f})")


def nodes():
    """How many nodes J takes to be right to 1e-10."""
    for elements in range(1, 40):
        method = ln.Ritz(elements=elements)
        path = ln.solve(well(), START, HORIZON, MINIMUM, method)
        if abs(path.J - TRUE_J) <= 1e-10:
            break
    say("nodes for J within 1e-10 of the true J", len(path.t), 60, least=False)


def coupled(D, *, dense=False):
    """D wells, each tied to its neighbour or to all others; a formula, a start and an end."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(D, D)) / np.sqrt(D)
    A = (
        (A @ A.T + np.eye(D)) / 2
        if dense
        else 0.25 * (2 * np.eye(D) - np.eye(D, k=1) - np.eye(D, k=-1))
    )

    def loss(x):
        if dense:
            return sum((x[i] ** 2 - 1) ** 2 - x[i] / 2 for i in range(D)) + _form(A, x) / 2
        chain = sum((x[i + 1] - x[i]) ** 2 for i in range(D - 1)) + x[0] ** 2 + x[D - 1] ** 2
        return sum((x[i] ** 2 - 1) ** 2 - x[i] / 2 for i in range(D)) + chain / 8

    start = rng.uniform(-1, 0.2, size=D)
    return loss, A, start, np.full(D, 0.9)


def _form(A, x):
    return sum(A[i, j] * x[i] * x[j] for i in range(len(x)) for j in range(len(x)))


def wells(x):
    return (x[0] ** 2 - 1) ** 2 + x[1] ** 2 - x[0] / 2


def bvp():
    """``solve_bvp`` against `Ritz`: each from a straight line, at the loosest tolerance that gives 1e-9.

    The error is the largest along the path, against its length. Of several first meshes
    ``solve_bvp`` gets the one that suits it best. The ten wells are not left on the way: if they
    are, it wanders off.
    """
    for D, bound in ((2, 3), (10, 25)):
        formula, A, start, end = coupled(D)
        start = 1 + start / 3
        quartic, lean = np.ones(D), np.full(D, -0.5)
        if D == 2:  # Fig. 1
            formula, A, start, end = wells, np.diag([0.0, 2.0]), START, MINIMUM
            quartic, lean = np.array([1.0, 0.0]), np.array([-0.5, 0.0])
        loss = ln.Function(formula, [f"x{i}" for i in range(D)])
        objective = ln.Objective(loss, gamma=GAMMA)
        t = np.linspace(0, HORIZON, 401)
        true = ln.solve(objective, start, HORIZON, end, ln.Ritz(degree=10), tol=1e-13).at(t)
        size = np.abs(np.diff(true, axis=0)).sum(axis=0).max()
        system = _Equations(A, quartic, lean, start, end)

        def by_bvp(nodes, tol, system=system):
            return system.solve(nodes, tol)

        def by_ritz(_, tol, objective=objective, start=start, end=end):
            # Both start from the straight line, and look for no other path.
            return ln.solve(objective, start, HORIZON, end, ln.Ritz(search=False), tol=tol).at

        chosen = {}
        for name, run, meshes in (("bvp", by_bvp, (11, 21, 41, 81)), ("ritz", by_ritz, (0,))):
            works = []
            for nodes in meshes:
                for tol in 10.0 ** np.arange(-3, -12, -0.5):
                    if np.abs(run(nodes, tol)(t) - true).max() <= 1e-9 * size:
                        least = min(timed(lambda n=nodes, e=tol, r=run: r(n, e)) for _ in range(5))
                        works.append((least, nodes, tol))
                        break
            chosen[name] = min(works)[1:]
        times, _ = interleaved(
            15,
            bvp=lambda chosen=chosen["bvp"], run=by_bvp: run(*chosen),
            ritz=lambda chosen=chosen["ritz"], run=by_ritz: run(*chosen),
        )
        note = f"{1e3 * times['bvp']:.1f} ms (tol {chosen['bvp'][1]:.0e}) against "
        note += f"{1e3 * times['ritz']:.1f} ms (tol {chosen['ritz'][1]:.0e})"
        say(
            f"solve_bvp / ours at error 1e-9, D = {D}",
            times["bvp"] / times["ritz"],
            bound,
            note=note,
        )


class _Equations:
    """The Euler-Lagrange equations of sum q (x^2-1)^2 + b.x + x.A.x/2, by hand for ``solve_bvp``."""

    def __init__(self, A, quartic, lean, start, end):
        self.A, self.q, self.b = A, 4 * quartic[:, None], lean[:, None]
        self.start, self.end, self.D = start, end, len(start)

    def flow(self, t, y):
        x, v = y[: self.D], y[self.D :]
        return np.vstack([v, GAMMA * v + self.q * x * (x**2 - 1) + self.b + self.A @ x])

    def slopes(self, t, y):
        D, i = self.D, np.arange(self.D)
        J = np.zeros((2 * D, 2 * D, len(t)))
        J[:D, D:] = np.eye(D)[..., None]
        J[D:, D:] = GAMMA * np.eye(D)[..., None]
        J[D:, :D] = self.A[..., None]
        J[D + i, i] += self.q * (3 * y[:D] ** 2 - 1)
        return J

    def ends(self, first, last):
        return np.concatenate([first[: self.D] - self.start, last[: self.D] - self.end])

    def solve(self, nodes, tol):
        t = np.linspace(0, HORIZON, nodes)
        pace = ((self.end - self.start) / HORIZON)[:, None]
        guess = np.vstack([self.start[:, None] + pace * t, np.repeat(pace, nodes, axis=1)])
        found = solve_bvp(
            self.flow, self.ends, t, guess, fun_jac=self.slopes, tol=tol, max_nodes=50_000
        )
        return lambda times: found.sol(times)[: self.D].T


def casadi_solver(D, formula):
    """The sum over steps as a nonlinear program: an IPOPT solver and its bounds."""
    import casadi

    dt = HORIZON / STEPS
    theta = casadi.SX.sym("theta", D, STEPS + 1)
    J = 0
    for j in range(STEPS):
        x, v = theta[:, j], (theta[:, j + 1] - theta[:, j]) / dt
        running = casadi.sumsqr(v) / 2 + formula([x[i] for i in range(D)])
        J += running * np.exp(-GAMMA * j * dt) * dt
    quiet = {"print_time": False, "ipopt": {"print_level": 0, "sb": "yes"}}
    return casadi.nlpsol("solver", "ipopt", {"x": casadi.vec(theta), "f": J}, quiet)


def casadi_solve(solver, start, end):
    line = (start + np.linspace(0, 1, STEPS + 1)[:, None] * (end - start)).ravel()
    low, high = np.full(line.shape, -np.inf), np.full(line.shape, np.inf)
    D = len(start)
    low[:D] = high[:D] = start
    low[-D:] = high[-D:] = end
    return float(solver(x0=line, lbx=low, ubx=high)["f"])


def casadi():
    """CasADi and IPOPT against `Discrete`, both from the same formula on the same grid."""
    try:
        import casadi as _
    except ImportError:
        print("CasADi is not installed: pip install lossnav[bench]. Its rows are left out.")
        return
    cases = [("D = 2", 2, False, 1), ("D = 10", 10, False, 1), ("D = 50", 50, False, 1),
             ("dense Hessian, D = 30", 30, True, 8), ("sparse Hessian, D = 200", 200, False, 0.8)]  # fmt: skip
    for label, D, dense, bound in cases:
        formula, _, start, end = coupled(D, dense=dense)

        def build(D=D, formula=formula):
            loss = ln.Function(formula, [f"x{i}" for i in range(D)])
            return ln.Discrete(ln.Objective(loss, gamma=GAMMA), STEPS, HORIZON / STEPS)

        rounds = 3 if D * (30 if dense else 1) >= 200 else 7
        plan, solver = build(), casadi_solver(D, formula)
        plan.minimise(start, end)
        times, results = interleaved(
            rounds,
            peer=lambda s=solver, a=start, b=end: casadi_solve(s, a, b),
            ours=lambda p=plan, a=start, b=end: p.minimise(a, b)[1],
        )
        agree = abs(results["peer"] - results["ours"]) / abs(results["ours"])
        note = f"{1e3 * times['peer']:.1f} ms against {1e3 * times['ours']:.1f} ms; J differs by {agree:.0e}"
        say(f"CasADi+IPOPT / ours, solve, {label}", times["peer"] / times["ours"], bound, note=note)
        whole, _ = interleaved(
            3,
            peer=lambda a=start, b=end, D=D, f=formula: casadi_solve(casadi_solver(D, f), a, b),
            ours=lambda a=start, b=end, build=build: build().minimise(a, b)[1],
        )
        note = f"{1e3 * whole['peer']:.0f} ms against {1e3 * whole['ours']:.0f} ms"
        ratio = whole["peer"] / whole["ours"]
        say(f"CasADi+IPOPT / ours, build and solve, {label}", ratio, 5, note=note)


def growth():
    """Exponents of the time in the number of steps and of coordinates."""
    for what, sizes, bound in (
        ("N", (100, 200, 400, 800, 1600), 1.2),
        ("D", (10, 20, 40, 80), 2.4),
    ):
        runs = {}
        for size in sizes:
            D, N = (4, size) if what == "N" else (size, 50)
            formula, _, start, end = coupled(D)
            loss = ln.Function(formula, [f"x{i}" for i in range(D)])
            plan = ln.Discrete(ln.Objective(loss, gamma=GAMMA), N, HORIZON / N)
            plan.minimise(start, end)
            runs[str(size)] = lambda p=plan, a=start, b=end: p.minimise(a, b)
        times, _ = interleaved(5, **runs)
        slope = np.polyfit(np.log(sizes), np.log([times[str(s)] for s in sizes]), 1)[0]
        note = ", ".join(f"{s}: {1e3 * times[str(s)]:.1f} ms" for s in sizes)
        say(f"growth of time, power of {what}", slope, bound, least=False, note=note)


def velocity():
    """The initial velocity on quadratics of condition 1e4, with an endless horizon."""
    worst = {"Riccati": 0.0, "Ritz": 0.0}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        Q = np.linalg.qr(rng.normal(size=(8, 8)))[0]
        h = np.geomspace(1e-2, 1e2, 8)
        x = rng.normal(size=8)
        for gamma in (0.0, 0.1, 1.0):
            objective = ln.Objective(ln.Quadratic((Q * h) @ Q.T), gamma=gamma)
            exact = -Q @ ((h / (gamma / 2 + np.sqrt(gamma**2 / 4 + h))) * (Q.T @ x))
            for method in (ln.Riccati(), ln.Ritz()):
                found = ln.solve(objective, x, method=method).velocity0
                name = type(method).__name__
                off = np.linalg.norm(found - exact) / np.linalg.norm(exact)
                worst[name] = max(worst[name], float(off))
    for name, off in worst.items():
        say(f"error of the velocity at condition 1e4, {name}", off, 1e-10, least=False)


ROWS = {f.__name__: f for f in (grid, nodes, bvp, casadi, growth, velocity)}


def main():
    wanted = sys.argv[1:] or list(ROWS)
    unknown = [name for name in wanted if name not in ROWS]
    if unknown:
        sys.exit(f"There is no row {unknown[0]!r}. Rows: {', '.join(ROWS)}.")
    for name in wanted:
        ROWS[name]()


if __name__ == "__main__":
    main()
