"""The game on any mechanism: play it, and refuse what can't be played."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.errors import InputError
from gradaudit.ldp.pairs import Pair
from gradaudit.ldp.statistics import Statistic
from gradaudit.ldp.trials import Trials
from gradaudit.types import Key

Release = Callable[[Key, jax.Array], jax.Array]  # (key, (d,)) -> (d,)
Advance = Callable[[int], None]  # told about the trials just played

_NUMBERS = 2**22  # held at a time: trials x coordinates
_SMALLEST_CHUNK, _LARGEST_CHUNK = 2**6, 2**14  # trials


@dataclasses.dataclass(frozen=True)
class ReleaseGame:
    """A mechanism, the statistics that are read from its outputs, and the pace.

    Every game runs one program, `size` trials at a time, so that it compiles once.
    """

    release: Release
    statistics: tuple[Statistic, ...]
    size: int
    advance: Advance

    def play(self, key: Key, pair: Pair, trials: int) -> tuple[Trials, ...]:
        """Returns trials for every statistic, on the same outputs."""
        firsts, scores = [], []
        for index, start in enumerate(range(0, trials, self.size)):
            keys = jax.random.split(jax.random.fold_in(key, index), self.size)
            first, score = _play_chunk(
                self.release, self.statistics, keys, pair.vectors
            )
            count = min(self.size, trials - start)
            firsts.append(np.asarray(first)[:count])
            scores.append(np.asarray(score)[:count])
            self.advance(count)
        chosen, table = np.concatenate(firsts), np.concatenate(scores)
        return tuple(Trials(chosen, column) for column in table.T)


def check_release(key: Key, release: Release, vector: jax.Array) -> None:
    """Raises `InputError` unless the mechanism returns finite values of one shape."""
    try:
        output = jax.jit(release)(key, vector)
    except InputError:
        raise
    except Exception as error:
        first_line = str(error).strip().split("\n")[0]
        raise InputError(
            "the mechanism failed on a vector of "
            f"{vector.size} numbers: {type(error).__name__}: {first_line}; it must be "
            "a function (key, vector) -> vector in jax.numpy"
        ) from error
    shape = getattr(output, "shape", type(output).__name__)
    if shape != vector.shape:
        raise InputError(
            f"the mechanism must return the shape of its input, {vector.shape}, "
            f"got {shape}"
        )
    bad = int(jnp.sum(~jnp.isfinite(output)))
    if bad:
        raise InputError(
            f"the mechanism returned {bad} of {vector.size} values that are NaN or "
            "infinite for a finite vector"
        )


def chunk_size(trials: int, numbers: int) -> int:
    """Returns how many trials to play at a time on vectors of so many numbers."""
    return min(trials, max(_SMALLEST_CHUNK, min(_NUMBERS // numbers, _LARGEST_CHUNK)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _play_chunk(
    release: Release,
    statistics: tuple[Statistic, ...],
    keys: jax.Array,
    vectors: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    def trial(key: Key) -> tuple[jax.Array, jax.Array]:
        choice_key, release_key = jax.random.split(key)
        first = jax.random.bernoulli(choice_key)
        output = release(release_key, jnp.where(first, vectors[0], vectors[1]))
        scores = jnp.stack([entry.score(output, vectors) for entry in statistics])
        broken = ~jnp.all(jnp.isfinite(output))
        return first, jnp.where(broken, jnp.nan, scores)

    return jax.vmap(trial)(keys)
