"""Federated frameworks: recording what their clients and servers see."""
