"""Learned perturbations of gradients (Edmunds 2024)."""
