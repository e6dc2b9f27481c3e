"""How large what leaks is, before the defense and after it."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit.audit.attack import LEARNING_RATE, chosen_model
from gradaudit.audit.scenario import Simulated
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses import none
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.base import Defense
from gradaudit.federation.setting import Setting
from gradaudit.models.model import Model
from gradaudit.types import Leakage


def gradient_norms(
    types: Sequence[int],
    defense: str | Defense,
    dataset: str | Dataset,
    model: str | Model | None = None,
    victims: int = 8,
    draws: int = 4,
    batch_size: int | None = None,
    local_steps: int = 1,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Returns the L2 norms of what the same victims send without and with a defense.

    On the scale of gradients, untrained networks. A row for each place that is read.
    """
    data = load_dataset(dataset) if isinstance(dataset, str) else dataset
    guard = parse_defense(defense) if isinstance(defense, str) else defense
    net = chosen_model(model, data)
    key, _ = jax.random.split(jax.random.key(seed))
    rows = []
    for leakage in map(Leakage, types):
        batch = 1 if leakage is Leakage.EXAMPLE else batch_size or 3
        setting = Setting(
            clients=victims,
            clients_per_round=victims,
            local_steps=local_steps,
            batch_size=batch,
            rounds=1,
            examples=batch * local_steps,
            learning_rate=LEARNING_RATE,
        )
        before, after = (
            _norms(Simulated(key, net, data, each, leakage, setting, draws=draws))
            for each in (none(), guard)
        )
        rows.append(
            {
                "type": int(leakage),
                "before": before.tolist(),
                "after": after.tolist(),
            }
        )
    return rows


def _norms(scenario: Simulated) -> NDArray[np.float64]:
    """Returns each victim's norm, (victims,)."""
    found = []
    for group in scenario.groups():
        observed = group.victims.observe(np.arange(len(group.ids)))
        squares = [
            np.square(np.asarray(leaf, np.float64)).reshape(len(leaf), -1).sum(axis=1)
            for leaf in jax.tree.leaves(observed.gradient)
        ]
        found.append(np.sqrt(sum(squares)))
    return np.concatenate(found)
