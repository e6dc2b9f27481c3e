"""How many rounds a privacy budget pays for."""

from gradaudit.accounting import epsilon, exhausted_at
from gradaudit.config import Federation
from gradaudit.defenses.base import Defense
from gradaudit.errors import InputError, require


def affordable_rounds(
    target: float,
    defense: Defense,
    federation: Federation,
    tensors: int,
    delta: float = 1e-5,
) -> int:
    """Returns how many of the federation's rounds stay within epsilon = target.

    The epsilon is what the defense claims, composed tightly; the training's result
    says beside it what really holds.
    """
    privacy = epsilon(defense, federation, delta=delta, tensors=tensors)
    if privacy.events is None:
        raise InputError(
            f"defense {defense.name!r} claims no finite epsilon, so it can't have a "
            "target; choose one that clips and adds noise, as fed-cdp"
        )
    stop = exhausted_at(target, privacy.events, delta).step
    if stop is None:
        return federation.rounds
    rounds = (stop - 1) // (privacy.steps // federation.rounds)
    require(
        rounds > 0,
        f"not even one round under {defense.name!r} stays within epsilon = {target:g}",
    )
    return rounds
