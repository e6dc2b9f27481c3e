"""Federated training as pure functions, and the taps that adversaries read from."""
