"""Hugging Face's `Trainer`: a small GPT-2 learns the characters of Python's own help texts.

    python examples/hugging_face_trainer.py

The optimizer is one argument of the `Trainer`: groups without weight decay for biases and norms, the
schedule, clipping, logging and checkpoints stay its own. Nothing is downloaded: the model is built from a configuration, and the text comes with Python.
"""

import tempfile
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from lossnav.optim.torch import Navigator

STEPS, LENGTH = 120, 64

text = "".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore").decode()[:65536]
letters = sorted(set(text))
codes = torch.tensor([letters.index(letter) for letter in text])
pieces = [{"input_ids": piece, "labels": piece} for piece in codes.split(LENGTH)]
train, test = pieces[:-64], pieces[-64:]

set_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(letters), n_positions=LENGTH, n_embd=48, n_layer=2, n_head=2,
        initializer_range=0.1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )
)  # fmt: skip

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=16, max_grad_norm=1.0,
        weight_decay=0.1, lr_scheduler_type="cosine", warmup_steps=10,
        per_device_eval_batch_size=64, save_strategy="no", logging_steps=40,
        report_to="none", disable_tqdm=True, use_cpu=True, seed=0,
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=train, eval_dataset=test,
        optimizer_cls_and_kwargs=(Navigator, {"lr": 1e-2}),
    )  # fmt: skip
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]

decays = [group["weight_decay"] for group in trainer.optimizer.param_groups]
assert decays == [0.1, 0.0]
share = torch.bincount(codes) / len(codes)
frequencies = -(share * share.log()).sum().item()
print(f"test loss {loss:.3f}; character frequencies alone give {frequencies:.3f}")
assert loss < frequencies - 0.3
