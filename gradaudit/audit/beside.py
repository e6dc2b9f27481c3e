"""What stands beside an attack where there is noise: a line-up, and the certificates.

A failed attack proves nothing. The line-up is the lower end of what somebody reaches,
the certificate the upper end of what anybody does.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy import special

from gradaudit.audit.informed import play_cells
from gradaudit.audit.line_ups import DOUBT, LOOK_AT, From, LineUps
from gradaudit.data import Dataset
from gradaudit.defenses.base import Defense
from gradaudit.federation.recipe import ServerState
from gradaudit.models.model import Model
from gradaudit.privacy.certificate import certificate, near
from gradaudit.privacy.plan import PrivacyPlan
from gradaudit.types import Leakage

LINE_UPS = 100  # unless another number is asked for
_CANDIDATES = 10
_DRAWS = 4  # networks of the attack that are also used here, at most
_EXAMPLES = 64  # of a client's round: beyond, the first gradient says next to nothing
_HALF = DOUBT / 2  # a false alarm of the line-up, and one of the attack


def line_up_and_certificates(
    model: Model,
    dataset: Dataset,
    defense: Defense,
    leakage: Leakage,
    states: Sequence[ServerState],
    *,
    batch_size: int,
    local_steps: int,
    success_rmse: float,
    seed: int,
    line_ups: int = LINE_UPS,
    looks: int = 1,
) -> dict[str, Any] | None:
    """Returns a short line-up and both certificates, as result.json has them.

    The line-ups are of the attack's own networks (`states`, one for each draw), in the
    attack's round (of several looks the last: noise that changes gets less), with other
    clients of the same data. None without noise, where there
    is nothing to certify, and without `states`, where the round was not ours. Costs
    well under a second once its two programs are compiled; with `line_ups` = 0 nothing
    is compiled or played, and the line-up has its certificate only.
    """
    if not defense.mechanisms or not states:
        return None
    alone = leakage is Leakage.EXAMPLE
    batch, steps = (1, 1) if alone else (batch_size, local_steps)
    most = int(np.bincount(dataset.labels).max())
    count = max(2, min(_CANDIDATES, most)) if alone else _CANDIDATES
    tensors = len(jax.tree.leaves(states[0].params))
    used = tuple(states[: min(_DRAWS, max(line_ups, 1))])
    table = LineUps(
        model, dataset, leakage, batch, steps, (count,), (looks,), max(line_ups, 1),
        len(used), From.LABEL, False, seed, tensors, used,
    )  # fmt: skip
    enough = most >= (count if alone else batch * steps)
    played: dict[str, Any] = {
        "candidates": count,
        "looks": looks,
        "line_ups": 0,
        "measured": None,
        "certified": table.certified(defense, count, looks).to_dict(),
        "guessing": 1 / count,
        "broken": False,
    }
    if line_ups and enough and batch * steps <= _EXAMPLES:
        (cell,), _ = play_cells(table, [(None, defense)], None)
        played = cell.to_dict() | {"broken": cell.breaks(_HALF)}
    rebuilt = certificate(
        PrivacyPlan(defense, table.setting, tensors=tensors),
        type=int(leakage),
        prior=near(dataset.inputs, success_rmse, batch * steps),
        looks=looks,
        round=table.round,
    )
    return {
        "line_up": played,
        "reconstruction": rebuilt.to_dict() | {"threshold": success_rmse},
    }


def broken_certificates(
    found: dict[str, Any] | None, successes: int, victims: int
) -> list[str]:
    """Returns what was measured above its certificate, in words; nothing if all holds.

    Certificates bound every victim on its own, whatever the network, so that all are
    counted together (Clopper-Pearson); a false alarm of either kind has 1.25 %.
    """
    if found is None:
        return []
    sentences, line_up = [], found["line_up"]
    if line_up["broken"]:
        sentences.append(
            f"one of {line_up['candidates']}: picked {line_up['measured']['value']:.3f}"
            f", certified {line_up['certified']['value']:.3f}. {LOOK_AT}"
        )
    bound = found["reconstruction"]["value"]
    others = victims - successes + 1
    low = special.betaincinv(successes, others, _HALF) if successes else 0
    if bound is not None and low > bound:
        sentences.append(
            f"{successes} of {victims} victims were rebuilt, certified "
            f"{bound:.3f}. {LOOK_AT}"
        )
    return sentences
