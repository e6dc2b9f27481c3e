"""Which attack makes sense against which defense, where: refused or said in words."""

import dataclasses

from gradaudit.attacks.analytic import Analytic
from gradaudit.attacks.base import Attack
from gradaudit.attacks.distances import SquaredL2
from gradaudit.attacks.matching import Matching
from gradaudit.defenses.base import Defense
from gradaudit.defenses.compression import Sign
from gradaudit.errors import require
from gradaudit.types import Leakage


@dataclasses.dataclass(frozen=True)
class Setting:
    """One combination: who attacks what, where."""

    attack: Attack
    defense: Defense
    leakage: Leakage
    examples: int  # that one observation mixes


def check(setting: Setting) -> list[str]:
    """Raises for what can't work; returns sentences on what to keep in mind."""
    attack, defense = setting.attack, setting.defense
    seen = transforms_seen(defense, setting.leakage)
    if isinstance(attack, Matching):
        signed = any(isinstance(transform, Sign) for transform in seen)
        require(
            not (signed and isinstance(attack.distance, SquaredL2)),
            "signs have lost the gradient's size, so that an L2 distance can't be "
            "matched: choose --method gradinv (cosine)",
        )
        require(
            not attack.cyclic or setting.examples > 1,
            "cyclic moves one input of a batch after the other, and this observation "
            "has one input: leave it out",
        )
    sentences = []
    if defense.name != "none" and not seen:
        sentences.append(
            f"{defense.name} acts after the point that type {int(setting.leakage)} "
            "reads: against this adversary it protects nothing."
        )
    if isinstance(attack, Analytic) and seen:
        sentences.append(
            "The analytic attack inverts an exact gradient; against a changed one it "
            "has no way to average the change out."
        )
    return sentences


def transforms_seen(defense: Defense, leakage: Leakage) -> tuple[object, ...]:
    """Returns the defense's transforms that lie before the adversary's tap."""
    points: dict[Leakage, tuple[object, ...]] = {
        Leakage.EXAMPLE: defense.per_example,
        Leakage.CLIENT: (*defense.per_example, *defense.update),
        Leakage.SERVER: (*defense.per_example, *defense.update, *defense.server),
    }
    return points[leakage]
