"""What a defense claims: its mechanisms, derived from its transforms.

Nobody types sigma or C a second time: the noise says how it is scaled, the clip
before it says what bounds the unit, and the sentences say where the two don't add up
to a guarantee.
"""

import dataclasses
from typing import Protocol, runtime_checkable

from gradaudit.defenses.base import Defense, Transform
from gradaudit.defenses.clipping import Clip
from gradaudit.mechanism import Mechanism, Point


@runtime_checkable
class Releases(Protocol):
    """A transform that adds noise, and can say how much for what."""

    def releases(self, point: Point, clip: Clip | None) -> tuple[Mechanism, ...]:
        """Returns the mechanisms at this point; `clip` is what bounds the unit."""


@runtime_checkable
class KeepsNorms(Protocol):
    """A transform that never makes a norm larger, so that an earlier clip still holds.

    Zeroing coordinates does; taking signs does not.
    """

    @property
    def keeps_norms(self) -> bool:
        """Whether an earlier clip still holds."""


def mechanisms_at(
    point: Point, transforms: tuple[Transform, ...]
) -> tuple[Mechanism, ...]:
    """Returns what the transforms at one point release.

    What follows a bounded release without a new clip is post-processing.
    """
    found: list[Mechanism] = []
    clip: Clip | None = None
    for transform in transforms:
        if isinstance(transform, Clip):
            clip = transform
            continue
        released = (
            transform.releases(point, clip) if isinstance(transform, Releases) else ()
        )
        if not _bounded(tuple(found)) or _bounded(released):
            found.extend(released)
        if not (isinstance(transform, KeepsNorms) and transform.keeps_norms):
            clip = None
    return tuple(found)


def _bounded(mechanisms: tuple[Mechanism, ...]) -> bool:
    return any(mechanism.clip(0) is not None for mechanism in mechanisms)


def defend(
    name: str,
    per_example: tuple[Transform, ...] = (),
    update: tuple[Transform, ...] = (),
    server: tuple[Transform, ...] = (),
    paper: str = "",
    summary: str = "",
) -> Defense:
    """Returns the defense of these transforms, with the mechanisms they claim."""
    return Defense(
        name=name,
        per_example=per_example,
        update=update,
        server=server,
        mechanisms=(
            mechanisms_at(Point.PER_EXAMPLE, per_example)
            + mechanisms_at(Point.UPDATE, update)
            + mechanisms_at(Point.SERVER, server)
        ),
        paper=paper,
        summary=summary,
    )


def compose(*defenses: Defense) -> Defense:
    """Returns the defenses one after the other, at each point in the given order."""
    chained = defend(
        name=" + ".join(defense.name for defense in defenses),
        per_example=sum((defense.per_example for defense in defenses), ()),
        update=sum((defense.update for defense in defenses), ()),
        server=sum((defense.server for defense in defenses), ()),
        paper="; ".join(defense.paper for defense in defenses if defense.paper),
        summary="; then ".join(defense.summary for defense in defenses),
    )
    parameters = tuple((defense.name, defense.parameters) for defense in defenses)
    return dataclasses.replace(chained, parameters=parameters)
