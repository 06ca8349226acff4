"""Weights with a mean and a variance: the machinery of `lossnav.optim.torch.WeightUncertainty`."""
