"""What is read of clients, together with whose it is."""

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.federation.taps import observe_many, private_data
from gradaudit.types import Leakage


def read_with_truth(
    recipe, population, key, state, leakage, clients, iteration=0, example=0
):
    """Returns what `observe_many` does, and the examples that were used for it."""
    seen = observe_many(
        recipe, population, key, state, leakage, clients, iteration, example
    )
    ids = jnp.asarray(np.asarray(clients, np.int32))
    used = private_data(recipe, population, key, state, ids)
    if leakage is Leakage.EXAMPLE:
        at = iteration * recipe.batch_size + example
        used = jax.tree.map(lambda leaf: leaf[:, at : at + 1], used)
    return seen, used
