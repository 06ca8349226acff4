"""Learning rules as optimizers of PyTorch and optax."""
