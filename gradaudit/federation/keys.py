"""Who draws from which key: the whole randomness of a run, from one seed.

Every draw is addressed by (round, client id, local iteration), never by a position
in a chunk or on a device, so that how the work is laid out changes no number.
"""

import jax

from gradaudit.types import Key

# Branches of a round's key; clients' ids have a branch of their own.
_CLIENTS, _SERVER, _SELECTION, _FINE_TUNING = range(4)
# Branches of a client's key.
_LOCAL, _UPDATE = range(2)


def _branch(key: Key, t: jax.Array | int, branch: int) -> Key:
    return jax.random.fold_in(jax.random.fold_in(key, t), branch)


def client_key(key: Key, t: jax.Array | int, client: jax.Array | int) -> Key:
    """Returns the key of one client in round t."""
    return jax.random.fold_in(_branch(key, t, _CLIENTS), client)


def server_key(key: Key, t: jax.Array | int) -> Key:
    """Returns the key of the server's transforms in round t."""
    return _branch(key, t, _SERVER)


def selection_key(key: Key, t: jax.Array | int) -> Key:
    """Returns the key that selects the clients of round t."""
    return _branch(key, t, _SELECTION)


def fine_tuning_key(key: Key, t: jax.Array | int) -> Key:
    """Returns the key of the server's public fine-tuning in round t."""
    return _branch(key, t, _FINE_TUNING)


def iteration_keys(client: Key, step: jax.Array | int) -> tuple[Key, Key]:
    """Returns (batch, noise) keys of a client's local iteration."""
    local = jax.random.fold_in(client, _LOCAL)
    batch, noise = jax.random.split(jax.random.fold_in(local, step))
    return batch, noise


def update_key(client: Key) -> Key:
    """Returns the key of the client's transforms on its finished update."""
    return jax.random.fold_in(client, _UPDATE)
