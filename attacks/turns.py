"""Attacks that take turns: each one is asked only about victims not yet solved.

The attacker keeps, for every victim, the answer that its own criterion prefers. The
criterion sees what leaked and the answer, never the truth.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.search import (
    CUT_SHORT,
    Ended,
    Ids,
    Snapshot,
    Stopped,
    Watcher,
    is_cut_short,
)
from gradaudit.types import Reconstruction, Status

if TYPE_CHECKING:
    from gradaudit.attacks.base import Member

_WAVE = 64  # victims that are attacked by all before the next ones: what a kill loses


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the attacker thinks of an answer, without knowing the truth."""

    cost: float  # the lower, the better
    misfit: float  # the share of what leaked that it leaves unexplained
    solved: bool  # nobody else need be asked


# Judges answers to these victims, one by one.
Judge = Callable[[Ids, Reconstruction], list[Verdict]]
# Lets the member of this index attack these victims; the last argument are the best
# answers so far, by victim's number, if it continues.
Ask = Callable[[int, Ids, Watcher | None, Reconstruction | None], Reconstruction]


def take_turns(
    members: "Sequence[Member]",
    fits: Sequence[bool],
    ask: Ask,
    judge: Judge,
    victims: Ids,
    count: int,
    watcher: Watcher | None,
    ended: Ended | None,
) -> Reconstruction:
    """Returns what is handed in for these victims (of `count`), stacked.

    A member that does not fit what leaked is passed over.

    Guarantee: what a victim gets depends on the victim alone. After Ctrl-C, victims
    that some attack has answered are INTERRUPTED with their best answer, the others
    MISSING; if nobody is cut short, `Stopped` hands it on.
    """
    waves = [victims[i : i + _WAVE] for i in range(0, len(victims), _WAVE)]
    done: list[Reconstruction] = []
    for number, wave in enumerate(waves):
        standing = _Standing(members, fits, wave, count, len(victims), number * _WAVE)
        stopped = standing.run(ask, judge, watcher, ended)
        done.append(standing.result())
        if stopped:
            missing = sum(len(other) for other in waves[number + 1 :])
            whole = joined([*done, _blank_like(done[0], missing)])
            if is_cut_short(whole):
                return whole
            raise Stopped(whole)
    return joined(done)


class _Standing:
    """What is known of one wave of victims, after so many turns."""

    def __init__(
        self,
        members: "Sequence[Member]",
        fits: Sequence[bool],
        wave: Ids,
        count: int,
        total: int,
        before: int,
    ) -> None:
        self._members, self._fits = members, fits
        self._wave, self._count = wave, count
        self._total, self._before = total, before
        self._firsts = np.cumsum([0, *(member.attack.trials for member in members)])
        self._answers: dict[int, Reconstruction] = {}  # by member, over the wave
        self._value = np.full(len(wave), np.inf)
        self._misfit = np.full(len(wave), np.inf)  # the least of all answers
        self._chosen = np.full(len(wave), -1)
        self._open = np.ones(len(wave), bool)
        self._cut = np.zeros(len(wave), bool)

    def run(
        self, ask: Ask, judge: Judge, watcher: Watcher | None, ended: Ended | None
    ) -> bool:
        """Lets everybody have a turn; returns whether Ctrl-C ended it."""
        for index, member in enumerate(self._members):
            if not self._open.any():
                return False
            rows = np.flatnonzero(self._open & self._asks(index))
            if not len(rows):
                continue
            begun = self._best() if member.continues and self._answers else None
            stopped = False
            try:
                watch = self._watch(watcher, index)
                found = ask(index, self._wave[rows], watch, begun)
            except Stopped as stop:
                found, stopped = stop.args[0], True
            stopped |= is_cut_short(found)
            self._take(index, rows, found, judge)
            over = ~np.isin(np.asarray(found.status), CUT_SHORT)
            later = range(index + 1, len(self._members))
            waits = np.any([self._asks(other) for other in later], axis=0)
            left = rows[over & ~(waits & self._open)[rows]]
            self._open[left] = False
            if ended is not None and len(left) and not stopped:
                ended(self._wave[left], self.result(left))
            if stopped:
                self._cut = self._open.copy()
                return True
        return False

    def _asks(self, index: int) -> NDArray[np.bool_]:
        """Returns about whom this member is asked, as things stand.

        Not about those whose best answer is its own attack's already, if it continues,
        unless the budget ended that: it would stop where it is.
        """
        member = self._members[index]
        # Before the first answer nothing is known of a victim: infinity is no misfit.
        near = (self._misfit <= member.below) | np.isinf(self._misfit)
        asks: NDArray[np.bool_] = near & (self._misfit > member.above)
        asks &= self._fits[index]
        if not member.continues:
            return asks
        for other, answers in self._answers.items():
            if self._members[other].attack == member.attack:
                ended = np.asarray(answers.status) != Status.BUDGET
                asks &= ~((self._chosen == other) & ended)
        return asks

    def _take(self, index: int, rows: Ids, found: Reconstruction, judge: Judge) -> None:
        """Compares the answers of one turn with the best so far."""
        found = dataclasses.replace(found, members=None)
        spread = _blank_like(found, len(self._wave))
        for name in ("inputs", "labels", "objective", "iterations", "evaluations"):
            getattr(spread, name)[rows] = np.asarray(getattr(found, name))
        spread.status[rows] = np.asarray(found.status)
        assert spread.trial is not None and found.trial is not None
        spread.trial[rows] = np.asarray(found.trial) + self._firsts[index]
        self._answers[index] = spread
        answered = np.flatnonzero(np.isfinite(np.asarray(found.objective)))
        if not len(answered):
            return
        which = rows[answered]
        verdicts = judge(self._wave[which], found.take(answered))
        value = np.asarray([verdict.cost for verdict in verdicts])
        solved = np.asarray([verdict.solved for verdict in verdicts])
        misfits: Any = spread.objective
        misfits[which] = [verdict.misfit for verdict in verdicts]
        self._misfit[which] = np.fmin(self._misfit[which], misfits[which])
        better = value < self._value[which]
        self._value[which] = np.where(better, value, self._value[which])
        self._chosen[which] = np.where(better, index, self._chosen[which])
        self._open[which[solved]] = False

    def result(self, rows: Ids | None = None) -> Reconstruction:
        """Returns what would be handed in now, over the wave or some of it."""
        rows = np.arange(len(self._wave)) if rows is None else rows
        opener = min(self._answers)
        absent = _blank_like(self._answers[opener], len(self._wave))
        each = [self._answers.get(i, absent) for i in range(len(self._members))]
        everybody: Reconstruction = jax.tree.map(
            lambda *leaves: np.stack([leaf[rows] for leaf in leaves], axis=1), *each
        )
        # Of a victim for which nobody found anything, the first answer counts.
        chosen = np.where(self._chosen[rows] < 0, opener, self._chosen[rows])
        picked: Reconstruction = jax.tree.map(
            lambda leaf: leaf[np.arange(len(rows)), chosen], everybody
        )
        begun = (everybody.status != Status.MISSING).any(axis=1)
        cut = np.where(begun, int(Status.INTERRUPTED), int(Status.MISSING))
        return dataclasses.replace(
            picked,
            evaluations=np.asarray(everybody.evaluations).sum(axis=1),
            status=np.where(self._cut[rows], cut, picked.status).astype(np.int32),
            members=everybody,
        )

    def _best(self) -> Reconstruction:
        """Returns the best answers by victim's number, NaN where there is none."""
        whole = dataclasses.replace(self.result(), members=None)
        spread = _blank_like(whole, self._count)
        for name in ("inputs", "labels"):
            getattr(spread, name)[self._wave] = getattr(whole, name)
        return spread

    def _watch(self, watcher: Watcher | None, index: int) -> Watcher | None:
        """Returns a watcher that counts trials through all turns."""
        if watcher is None:
            return None
        each, mine = int(self._firsts[-1]), self._members[index].attack.trials
        gone = int(self._firsts[index])
        solved = int((~self._open).sum())
        going = len(self._wave) - solved

        def watch(snapshot: Snapshot) -> None:
            victim, restart = np.divmod(np.maximum(snapshot.trials, 0), mine)
            trials = victim * each + gone + restart
            watcher(
                dataclasses.replace(
                    snapshot,
                    trials=np.where(snapshot.trials >= 0, trials, -1),
                    finished=(self._before + solved) * each
                    + going * gone
                    + snapshot.finished,
                    total=self._total * each,
                )
            )

        return watch


def _blank_like(one: Reconstruction, count: int) -> Reconstruction:
    """Returns `count` victims whom nobody has attacked, by members if `one` is."""
    blank = {"inputs": np.nan, "labels": -1, "objective": np.nan}
    blank |= {"iterations": 0, "evaluations": 0, "trial": 0, "status": Status.MISSING}
    made: dict[str, Any] = {}
    for name, value in blank.items():
        like = np.asarray(getattr(one, name))
        made[name] = np.full((count, *like.shape[1:]), value, like.dtype)
    members = None if one.members is None else _blank_like(one.members, count)
    return Reconstruction(**made, members=members)


def joined(parts: Sequence[Reconstruction]) -> Reconstruction:
    """Returns the victims of all parts, stacked."""
    whole: Reconstruction = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    return whole
