"""Empirical local privacy: what six adversaries can tell about an LDP-SGD gradient."""
