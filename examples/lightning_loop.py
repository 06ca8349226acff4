"""Lightning: `configure_optimizers` returns a `KroneckerNavigator` and its schedule.

    python examples/lightning_loop.py

One optimizer serves the whole model: it finds a basis for each matrix, and treats biases, norms and
single numbers as `Navigator` does. The digits are those that come with scikit-learn.
"""

import logging

import lightning
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, Subset, TensorDataset

from lossnav.optim.torch import KroneckerNavigator


class Digits(lightning.LightningModule):
    """A small convolutional network."""

    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            torch.nn.Flatten(), torch.nn.Linear(144, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10),
        )  # fmt: skip

    def training_step(self, batch):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.network(images), labels)

    def test_step(self, batch):
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = KroneckerNavigator(self.named_parameters(), lr=1e-2)
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1e-2, total, cycle_momentum=False
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
lightning.seed_everything(0, verbose=False)
pixels, labels = load_digits(return_X_y=True)
images = torch.as_tensor(pixels.astype("float32") / 16).reshape(-1, 1, 8, 8)
train, test = train_test_split(range(len(labels)), random_state=0)
data = TensorDataset(images, torch.as_tensor(labels))

trainer = lightning.Trainer(
    max_epochs=8, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
model = Digits()
trainer.fit(model, DataLoader(Subset(data, train), 64, shuffle=True))
found = trainer.test(model, DataLoader(Subset(data, test), 512), verbose=False)
accuracy = found[0]["accuracy"]
print(f"test accuracy {accuracy:.1%} after {trainer.global_step} steps")
assert accuracy > 0.9
