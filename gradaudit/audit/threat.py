"""The threat: what the adversary reads, knows and may alter; an input of every run."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradaudit.attacks import PRESETS
from gradaudit.attacks.base import Attack
from gradaudit.defenses.transforms import Defense, Transform
from gradaudit.errors import InputError, unknown_name
from gradaudit.federation.recipe import Recipe
from gradaudit.models.model import Model
from gradaudit.models.networks import MODELS, build_model
from gradaudit.types import Knowledge, Leakage, LocalTraining, Observation

_READS = {
    Leakage.EXAMPLE: "one example's gradient, at the client, inside a local iteration",
    Leakage.CLIENT: "the client's update, at the client, after local training",
    Leakage.SERVER: "the client's update, at the server, before aggregation",
}
_CURIOUS: frozenset[Knowledge] = frozenset()
_AWARE = _CURIOUS | {Knowledge.DEFENSE, Knowledge.PUBLIC_DATA}
_INFORMED = _AWARE | {Knowledge.CANDIDATES}
_MALICIOUS = _AWARE | {Knowledge.PARAMETERS}
THREATS = {
    "curious": _CURIOUS,
    "aware": _AWARE,
    "informed": _INFORMED,
    "malicious": _MALICIOUS,
}
# What everybody knows.
KNOWN = (
    "the model and its parameters",
    "the batch size, the local steps and the learning rate",
)
# The threat models of Carletti et al. 2025, "SoK: Gradient Inversion Attacks in
# Federated Learning", that are said here; A and B know less than everybody here does,
# E the clients' statistics, H also chooses who takes part.
SOK = {
    "C": "Parameter-Aware Eavesdropper",
    "D": "Data-Enhanced Eavesdropper",
    "F": "Active Manipulator",
    "G": "Data-Enhanced Manipulator",
}
# What no letter of theirs counts.
_UNCOUNTED = (Knowledge.DEFENSE, Knowledge.CANDIDATES, Knowledge.LABELS)
# Of no use to an attack that does not say that it needs them, and who makes use of it.
_FOR_SPECIALISTS = {
    Knowledge.CANDIDATES: "`gradaudit line-up` is the informed adversary's",
    Knowledge.PARAMETERS: "--method imprint is the malicious server's",
}
# What can be added to a named threat: `curious+labels`.
GRANTS = {"labels": Knowledge.LABELS}


@dataclasses.dataclass(frozen=True)
class Threat:
    """Who attacks: everybody knows the model, its parameters and the sizes."""

    name: str
    reads: Leakage
    knows: frozenset[Knowledge] = frozenset()
    looks: int = 1  # observations of one victim

    @classmethod
    def parse(cls, text: str, reads: Leakage, looks: int = 1) -> "Threat":
        """Returns the threat of a text: `curious`, `aware`, `curious+labels`."""
        name, *grants = [word.strip() for word in text.split("+")]
        if name not in THREATS:
            raise unknown_name("threat", name, THREATS)
        known = set(THREATS[name])
        for grant in grants:
            if grant not in GRANTS:
                raise unknown_name("thing that a threat can grant", grant, GRANTS)
            known.add(GRANTS[grant])
        return cls(text, reads, frozenset(known), looks)

    def check(self, attack: Attack) -> None:
        """Raises in words if the attack needs more than this threat gives.

        Nor may the threat promise what the attack makes no use of: a result that says
        `malicious` over an honest server's figures would be false safety.
        """
        idle = [k for k in _FOR_SPECIALISTS if k in self.knows - attack.needs]
        if idle:
            raise InputError(
                f"this attack makes no use of {' and '.join(k.value for k in idle)}: "
                "choose --threat aware or curious; "
                + "; ".join(_FOR_SPECIALISTS[k] for k in idle)
            )
        if self.looks != 1 and not attack.joint:
            raise InputError(
                "this attack reads one look only: choose --method strongest, cpl, "
                "gradinv or another that matches gradients, or leave looks out"
            )
        missing = sorted(attack.needs - self.knows, key=lambda need: need.name)
        if missing:
            words = " and ".join(need.value for need in missing)
            grants = [word for word, what in GRANTS.items() if what in missing]
            remedy = "+".join([self.name, *grants]) if grants else "aware"
            if Knowledge.PARAMETERS in missing:
                remedy = "malicious"
            raise InputError(
                f"this attack needs to know {words}, and the threat {self.name!r} does "
                f"not give that: choose another attack, or --threat {remedy}"
            )

    @property
    def letter(self) -> str:
        """The letter of `SOK`: by public data, and by who chooses the parameters."""
        public = Knowledge.PUBLIC_DATA in self.knows
        if Knowledge.PARAMETERS in self.knows:
            return "G" if public else "F"
        return "D" if public else "C"

    def in_words(self) -> dict[str, Any]:
        """Returns what it knows and alters, as result.json has it."""
        alters = Knowledge.PARAMETERS in self.knows
        return {
            "knows": [*KNOWN, *sorted(need.value for need in self.knows)],
            "alters": "the parameters that clients receive" if alters else "nothing",
        }

    def to_dict(self, attack: Attack) -> dict[str, Any]:
        """Returns the threat as result.json has it, with what this attack used."""
        return {
            "name": self.name,
            "type": int(self.reads),
            "reads": _READS[self.reads],
            "looks": self.looks,
            "sok": {
                "letter": self.letter,
                "name": SOK[self.letter],
                "uncounted": [k.value for k in _UNCOUNTED if k in self.knows],
            },
            **self.in_words(),
            "attack_needs": sorted(need.value for need in attack.needs),
            "selection": "the iterate with the attacker's lowest own objective",
        }


def remarks(attack: Attack, defense: Defense, threat: Threat) -> list[str]:
    """Raises for what can't work; returns sentences on what to keep in mind."""
    leakage = threat.reads
    seen = transforms_seen(defense, leakage)
    distance = getattr(attack, "distance", None)
    resized = any(getattr(transform, "loses_scale", False) for transform in seen)
    if Knowledge.DEFENSE not in threat.knows and (
        resized and distance is not None and not distance.scale_free
    ):
        raise InputError(
            "signs have lost the gradient's size, so that an L2 distance can't be "
            "matched: choose --method gradinv (cosine), or --threat aware"
        )
    sentences = []
    if defense.name != "none" and not seen:
        sentences.append(
            f"{defense.name} acts after the point that type {int(leakage)} reads: "
            "against this adversary it protects nothing."
        )
    silent = [type(t).__name__ for t in seen if not hasattr(t, "explain")]
    if Knowledge.DEFENSE in threat.knows and silent:
        sentences.append(
            f"{' and '.join(silent)} does not say what it does to a guess, so that an "
            "aware adversary is no stronger than a curious one there."
        )
    if attack.exact and seen:
        sentences.append(
            "The closed form inverts an exact gradient; against a changed one it has "
            "no way to average the change out."
        )
    return sentences


def transforms_seen(
    defense: Defense | Recipe, leakage: Leakage
) -> tuple[Transform, ...]:
    """Returns the defense's transforms that lie before the adversary's tap."""
    updates = () if leakage is Leakage.EXAMPLE else defense.update
    server = defense.server if leakage is Leakage.SERVER else ()
    return (*defense.per_example, *updates, *server)


_IMAGES, _CLASSES = (32, 32, 3), 10  # like CIFAR-10
_BATCH = 8
_PUBLIC = 8  # examples that a malicious server has


@dataclasses.dataclass(frozen=True)
class Fit:
    """Whether one attack fits one network; `why` says in words why not."""

    model: str
    attack: str
    examples: int  # whose gradients are mixed in what is read
    why: str = ""


def all_fits() -> Iterator[Fit]:
    """Yields every network with every attack, for one example and for a batch."""
    for name in MODELS:
        model = build_model(name, _IMAGES, _CLASSES)
        for count in (1, _BATCH):
            for attack in PRESETS:
                yield Fit(name, attack, count, _why(model, attack, count))


def _why(model: Model, name: str, examples: int) -> str:
    if model.coupled and examples == 1:
        return (
            "batch norm in training mode: no example has a gradient of its own; "
            "attack the batch"
        )
    attack = PRESETS[name].make()
    public = np.random.default_rng(0).random((_PUBLIC, *model.input_shape))
    altered = attack.altered(model, public)
    params, buffers = altered.shapes()
    training = LocalTraining(batch_size=examples)
    seen = Observation(params, params, buffers, training=training)
    whys = [member.attack.unfit(altered, seen) for member in attack.members]
    if whys:
        return "; ".join(whys) if all(whys) else ""
    return attack.unfit(altered, seen)
