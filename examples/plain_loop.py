"""A plain PyTorch loop: handwritten digits, a schedule, and a run that is stopped and taken up again.

    python examples/plain_loop.py

`Navigator` stands where `torch.optim.AdamW` would: the same loop, the same schedulers, the same
checkpoints. The run is made twice, once in one go and once with a stop half-way, where model, optimizer
and schedule go to a file and come back. Both must end with the same weights, to the last bit.
"""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from lossnav.optim.torch import Navigator

EPOCHS, BATCH = 10, 64

pixels, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = (
    torch.as_tensor(part)
    for part in train_test_split(pixels.astype("float32") / 16, labels, random_state=0)
)


def prepare():
    """Everything that a run needs, the same each time."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    # With names, a checkpoint is matched by name even if the order of the parameters changes.
    optimizer = Navigator(model.named_parameters(), lr=1e-2, weight_decay=1e-2, gamma=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    return model, optimizer, scheduler


def train(model, optimizer, scheduler, epochs):
    for epoch in epochs:
        order = torch.randperm(len(x_train), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x_train[batch]), y_train[batch])
            loss.backward()
            optimizer.step()
        scheduler.step()


whole = prepare()
train(*whole, range(EPOCHS))

with tempfile.TemporaryDirectory() as folder:
    checkpoint = Path(folder) / "checkpoint.pt"
    first = prepare()
    train(*first, range(EPOCHS // 2))
    torch.save([part.state_dict() for part in first], checkpoint)

    second = prepare()
    for part, state in zip(second, torch.load(checkpoint, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(*second, range(EPOCHS // 2, EPOCHS))

model, optimizer, _ = whole
accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
resumed = second[0]
same = all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
print(f"test accuracy {accuracy:.1%}, {optimizer.skipped} steps skipped, resumed run equal: {same}")
assert accuracy > 0.9
assert same
