"""Classes that arrive one after another, for ever: does the network still learn the last as well as the first?

    python examples/class_stream.py

The network tells five kinds of clothes apart (Fashion-MNIST; the digits of scikit-learn where that is not on this
machine). Every 100 steps one of them leaves and another arrives, under the name of the one that left. Each batch is
judged before it is learnt from. Some classes are harder than others, so compare rules within a quarter.
`WeightUncertainty` keeps what is in use sure, and the rest free. What has left is forgotten.
"""

import torch
from torch import nn
from torch.nn import functional as F

from lossnav.optim.torch import WeightUncertainty
from lossnav.studies.data import load, substitute

ARRIVALS, STEPS, BATCH, NAMES = 24, 100, 16, 5

name, sentence = substitute("fashion-mnist")
if sentence:
    print(sentence)
data = load(name)
images = torch.tensor(data.x_train, dtype=torch.float32) / int(data.x_train.max())
images = (F.avg_pool2d(images, 2) if images.shape[-1] == 28 else images).flatten(1)
classes = [torch.where(torch.tensor(data.y_train) == c)[0] for c in range(10)]


def batches(seed):
    """For each arrival, its inputs and their names, step by step."""
    rng = torch.Generator().manual_seed(seed)
    now = torch.randperm(10, generator=rng).tolist()[:NAMES]
    waiting = [c for c in range(10) if c not in now]
    for arrival in range(ARRIVALS):
        if arrival:
            chosen = int(torch.randint(len(waiting), (1,), generator=rng))
            now[arrival % NAMES], waiting[chosen] = waiting[chosen], now[arrival % NAMES]
        names = torch.randint(NAMES, (STEPS, BATCH), generator=rng)
        places = torch.empty_like(names)
        for i, c in enumerate(now):
            here = names == i
            drawn = torch.randint(len(classes[c]), (int(here.sum()),), generator=rng)
            places[here] = classes[c][drawn]
        yield zip(images[places], names, strict=True)


def stream(make):
    """The accuracy in each quarter of the stream."""
    torch.manual_seed(0)
    layers = [nn.Linear(images.shape[1], 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, NAMES)]  # fmt: skip
    model = nn.Sequential(*layers)
    optimizer = make(model)
    right = []
    for steps in batches(seed=1):
        for x, y in steps:
            optimizer.zero_grad()
            said = model(x)
            F.cross_entropy(said, y).backward()
            optimizer.step()
            right.append((said.argmax(1) == y).float().mean())
    return torch.stack(right).reshape(4, -1).mean(1)


RULES = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    "WeightUncertainty": lambda model: WeightUncertainty(model.named_parameters(), batch_size=BATCH),
}  # fmt: skip

print(f"accuracy over each quarter of {ARRIVALS} arrivals")
quarters = {}
for rule, make in RULES.items():
    quarters[rule] = stream(make)
    print(f"{rule:<18}" + "".join(f"{value:8.3f}" for value in quarters[rule].tolist()), flush=True)
assert quarters["WeightUncertainty"][3] > quarters["Adam"][3]
