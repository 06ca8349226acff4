"""Probes of an optimizer: chosen gradients in, observed steps out."""
