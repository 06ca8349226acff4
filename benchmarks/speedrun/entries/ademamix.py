"""AdEMAMix of pytorch_optimizer: Adam with a second, slower mean gradient."""

from pytorch_optimizer import AdEMAMix

NAME = "AdEMAMix"
AUTHOR = "the lossnav developers"
TUNING = "lr, in factors of 2, at 200 steps on seed 0"


def make(model, steps, lr=5e-4, beta1=0.9, beta3=0.999, alpha=2.0, schedule="wsd"):
    betas = beta1, 0.99, beta3
    optimizer = AdEMAMix(model.parameters(), lr, betas, alpha=alpha, t_alpha_beta3=steps)
    return optimizer, schedule
