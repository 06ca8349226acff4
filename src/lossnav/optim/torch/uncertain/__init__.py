"""Weights with a mean and a variance: `lossnav.optim.torch.WeightUncertainty`."""
