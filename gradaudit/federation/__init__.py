"""Federated training as pure functions, and the taps that adversaries read from."""

from gradaudit.federation.population import Population
from gradaudit.federation.recipe import Recipe, ServerState, initial_state
from gradaudit.federation.rounds import RoundInfo, run_round
from gradaudit.federation.taps import observe, observe_many

__all__ = [
    "Population",
    "Recipe",
    "RoundInfo",
    "ServerState",
    "initial_state",
    "observe",
    "observe_many",
    "run_round",
]
