"""The time of one optimizer step: ours against PyTorch's, on ten million parameters in 51 tensors.

Each ratio is of minima over many steps, taken in turn in one process with two threads, so that a
busy machine disturbs both alike. Our steps include the search for NaN and infinity, which PyTorch's
do not make. Rows in parentheses have no bound: they show what more settings cost.

    python benchmarks/optimizer_step.py [row ...]      rows: fused foreach settings memory start kronecker matrices dtensor
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "2"

import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

from lossnav.optim.torch import Ballistic, Navigator  # noqa: E402

TOTAL, TENSORS = 10_000_000, 51
ROUNDS = 60


def shapes():
    """A network's mixture: large matrices, and vectors between them; TOTAL in all."""
    vectors, matrices = [1024] * 25, TENSORS - 26
    rows = (TOTAL - sum(vectors)) // (matrices * 512)
    mixed = [(rows, 512)] * matrices + [(n,) for n in vectors]
    rest = TOTAL - sum(int(np.prod(s)) for s in mixed)
    return [*mixed, (rest,)]


def parameters():
    rng = torch.Generator().manual_seed(0)
    result = []
    for shape in shapes():
        p = torch.nn.Parameter(torch.randn(shape, generator=rng))
        p.grad = 1e-2 * torch.randn(shape, generator=rng)
        result.append(p)
    return result


def interleaved(rounds, **runs):
    """The least time of each, in turn."""
    times = dict.fromkeys(runs, np.inf)
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            times[name] = min(times[name], time.perf_counter() - began)
    return times


def say(what, value, bound, *, least=False, note=""):
    holds = value >= bound if least else value <= bound
    sign = ">=" if least else "<="
    verdict = "holds" if holds else "MISSES"
    print(f"{what:<62}{value:>12.4g}  {sign} {bound:<8g}{verdict}  {note}", flush=True)


def compared(what, bound, ours, theirs, rounds=ROUNDS):
    times = interleaved(rounds, theirs=theirs.step, ours=ours.step)
    note = f"{1e3 * times['ours']:.2f} ms against {1e3 * times['theirs']:.2f} ms"
    if bound is None:
        print(f"  ({what}: {times['ours'] / times['theirs']:.3f}, {note})", flush=True)
    else:
        say(what, times["ours"] / times["theirs"], bound, note=note)


def fused():
    """One pass over memory."""
    peer = torch.optim.AdamW(parameters(), weight_decay=0.01, fused=True)
    ours = Navigator(parameters(), weight_decay=0.01, fused=True)
    compared("Navigator fused / torch AdamW fused", 1.1, ours, peer)
    bare = Navigator(parameters(), weight_decay=0.01, fused=True, nonfinite="ignore")
    compared("the same without a look for NaN, as torch does", 1.1, bare, peer)


def foreach():
    """Lists of tensors."""
    peer = torch.optim.Adam(parameters(), foreach=True)
    compared(
        "Navigator foreach / torch Adam foreach",
        1.0,
        Navigator(parameters(), foreach=True),
        peer,
        15,
    )


def settings():
    """What more settings cost, in each form, against the same peers."""
    peer = torch.optim.AdamW(parameters(), weight_decay=0.01, fused=True)
    made = {
        "gamma": {"gamma": 1e-3},
        "centered, nesterov": {"centered": True, "nesterov": True},
        "gain kalman": {"gain": "kalman"},
        "saturation": {"saturation": 1.0},
        "nonfinite ignore": {"nonfinite": "ignore"},
    }
    for name, more in made.items():
        ours = Navigator(parameters(), weight_decay=0.01, fused=True, **more)
        compared(f"fused, {name} / torch AdamW fused", None, ours, peer, 30)
    compared(
        "Ballistic fused / torch AdamW fused", None, Ballistic(parameters(), fused=True), peer, 30
    )
    peer = torch.optim.Adam(parameters(), foreach=True)
    for name in ("gamma", "gain kalman", "saturation"):
        ours = Navigator(parameters(), foreach=True, **made[name])
        compared(f"foreach, {name} / torch Adam foreach", None, ours, peer, 8)


def memory():
    """Bytes of state for each parameter."""
    optimizer = Navigator(parameters())
    optimizer.step()
    held = sum(t.numel() * t.element_size() for s in optimizer.state.values() for t in s.values())
    say("bytes of state for each parameter", held / TOTAL, 8.001, note=f"{held:,} bytes")


COLD = """

import torch
from lossnav.optim.torch import Navigator
torch.set_num_threads(2)
p = torch.nn.Parameter(torch.ones(1_000_000)); p.grad = torch.ones(1_000_000)
Navigator([p], fused=True).step()
"""


def start():
    """From the start of a process to the end of its first step, with nothing compiled before."""
    with tempfile.TemporaryDirectory() as empty:
        for what, bound in (("nothing on disk", 20), ("the second time", None)):
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", COLD],
                env={**os.environ, "NUMBA_CACHE_DIR": empty},
                check=True,
            )
            taken = time.perf_counter() - began
            if bound is None:
                print(f"  ({what}: {taken:.1f} s)", flush=True)
            else:
                say(f"seconds to the end of a first fused step, {what}", taken, bound)


ROWS = {f.__name__: f for f in (fused, foreach, settings, memory, start)}


def transformer():
    """The parameters of the million in benchmarks/training/text_1m.toml."""
    from lossnav.studies.tasks.text import Transformer

    torch.manual_seed(0)
    model = Transformer(65, layers=5, width=128, heads=4, context=64)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    return list(model.parameters())


def kronecker():
    """Beliefs about matrices, of ten million numbers and of a transformer's million."""
    against_soap("KroneckerNavigator / SOAP", parameters, cycles=2)
    against_soap("the same, transformer of a million", transformer, cycles=6)


def against_soap(title, make, cycles):
    """The mean over whole cycles of a refresh, the best of several."""
    from pytorch_optimizer import SOAP

    from lossnav.optim.torch.kronecker import KroneckerNavigator

    made = {
        "theirs": SOAP(make(), weight_decay=0.0, precondition_frequency=10),
        "ours": KroneckerNavigator(make(), refresh=10),
    }
    rng = torch.Generator().manual_seed(1)
    times = {name: [] for name in made}
    for _ in range(10 * cycles + 1):
        for name, optimizer in made.items():
            for p in optimizer.param_groups[0]["params"]:
                p.grad.normal_(0.0, 1e-2, generator=rng)
            began = time.perf_counter()
            optimizer.step()
            times[name].append(time.perf_counter() - began)
    # The first step of each sets up its bases.
    found = {name: np.reshape(each[1:], (cycles, 10)) for name, each in times.items()}
    mean = {name: each.mean(axis=1).min() for name, each in found.items()}
    note = f"{mean['ours']:.3f} s against {mean['theirs']:.3f} s"
    say(title, mean["ours"] / mean["theirs"], 1.0, note=note)
    for word, slow in (("slowest", np.max), ("median", np.median)):
        of = {name: slow(each, axis=1).min() for name, each in found.items()}
        print(f"  ({word} step of a cycle: {of['ours']:.3f} s against {of['theirs']:.3f} s)")
    print(
        f"  (first step: {times['ours'][0]:.2f} s against {times['theirs'][0]:.2f} s)", flush=True
    )


ROWS["kronecker"] = kronecker


def matrices():
    """Rules for matrices on transformers of 0.2 and of one million parameters, and the training step around them.

    Each time is the mean over a cycle of a refresh, the least of several; all rules take turns. The step of training is without its optimizer.
    """
    sizes = {
        "0.2 million": {"layers": 4, "width": 64, "heads": 4, "context": 48, "batch": 8},
        "a million": {"layers": 5, "width": 128, "heads": 4, "context": 64, "batch": 12},
    }
    for title, size in sizes.items():
        times = timed_matrices(**size)
        alone = times.pop("training without optimizer")
        print(f"transformer of {title}: {1e3 * alone:.2f} ms of training without optimizer")
        muon = times["Muon"]
        for name, taken in times.items():
            whole = (alone + taken) / (alone + muon)
            note = f"{taken / muon:.2f} of Muon; training with it {whole:.2f} of that with Muon"
            print(f"  {name:<42}{1e3 * taken:>8.2f} ms  {note}", flush=True)


def timed_matrices(layers, width, heads, context, batch, cycles=4):
    from lossnav.optim.torch import KroneckerNavigator, from_rule
    from lossnav.rules import zoo
    from lossnav.studies.tasks.text import Transformer

    def model():
        torch.manual_seed(0)
        return Transformer(65, layers=layers, width=width, heads=heads, context=context)

    def parted(net):
        outside = ("letter", "place", "head")
        split = [], []
        for name, p in net.named_parameters():
            split[p.ndim < 2 or name.startswith(outside)].append(p)
        return split

    def muon(net, **settings):
        inner, others = parted(net)
        rule = zoo.Muon(0.0, weight_decay=0.0, half=False, **settings)
        return [from_rule(inner, rule), torch.optim.AdamW(others, 0.0)]

    nets = {name: model() for name in ("Muon", "Muon, three iterations", "KroneckerNavigator",
                                       "KroneckerNavigator, short sides", "Navigator", "AdamW")}  # fmt: skip
    made = {
        "Muon": muon(nets["Muon"]),
        "Muon, three iterations": muon(nets["Muon, three iterations"], steps=3),
    }
    for name, make in (
        ("KroneckerNavigator", KroneckerNavigator),
        ("KroneckerNavigator, short sides", lambda p, lr: KroneckerNavigator(p, lr, max_dim=width)),
        ("Navigator", Navigator),
        ("AdamW", torch.optim.AdamW),
    ):
        made[name] = [make(nets[name].parameters(), 0.0)]
    rng = torch.Generator().manual_seed(1)
    plain = model()
    codes = torch.randint(65, (batch, context), generator=rng)
    times = {name: [] for name in ("training without optimizer", *made)}
    for _ in range(10 * cycles + 1):
        began = time.perf_counter()
        plain.zero_grad()
        scores = plain(codes).flatten(0, 1)
        torch.nn.functional.cross_entropy(scores, codes.flatten()).backward()
        times["training without optimizer"].append(time.perf_counter() - began)
        for name, optimizers in made.items():
            for p in nets[name].parameters():
                p.grad = 1e-2 * torch.randn(p.shape, generator=rng)
            began = time.perf_counter()
            for optimizer in optimizers:
                optimizer.step()
            times[name].append(time.perf_counter() - began)
    # The first step of each sets up its bases.
    return {n: np.reshape(each[1:], (cycles, 10)).mean(axis=1).min() for n, each in times.items()}


ROWS["matrices"] = matrices


def dtensor():
    """Sharded parameters against plain tensors of the size of the shard, on a mesh of one process."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    def spread():
        mesh = init_device_mesh("cpu", (1,))
        result = []
        for p in parameters():
            q = torch.nn.Parameter(DTensor.from_local(p.detach(), mesh, [Shard(0)]))
            q.grad = DTensor.from_local(p.grad, mesh, [Shard(0)])
            result.append(q)
        return result

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/m", rank=0, world_size=1)
        for what, bound, more in (
            ("Navigator, DTensor / the same on plain tensors", 1.1, {}),
            ("foreach, DTensor / plain", 1.1, {"foreach": True}),
            ("gain kalman, DTensor / plain", None, {"gain": "kalman"}),
            ("torch AdamW fused, DTensor / plain", None, None),
        ):
            made = [
                torch.optim.AdamW(params, fused=True) if more is None else Navigator(params, **more)
                for params in (spread(), parameters())
            ]
            compared(what, bound, *made, rounds=ROUNDS if not more else 5)
        dist.destroy_process_group()


ROWS["dtensor"] = dtensor


def main():
    wanted = sys.argv[1:] or list(ROWS)
    unknown = [name for name in wanted if name not in ROWS]
    if unknown:
        sys.exit(f"There is no row {unknown[0]!r}. Rows: {', '.join(ROWS)}.")
    torch.set_num_threads(2)
    for name in wanted:
        ROWS[name]()


if __name__ == "__main__":
    main()
