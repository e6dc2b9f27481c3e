"""One attack over several processes: who attacks whom, and how it comes together.

Victims are independent, so that processes need no collectives: each one observes and
attacks its own part. What they tell each other goes through the store of keys and
values that jax's coordination service keeps in process 0: which attack it is, who is
finished already, who has just finished, who is alive. Process 0 keeps the finished, its
own and everybody's, as they come. Guarantee: the cut changes no number.
"""

import contextlib
import dataclasses
import itertools
import json
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import InputError, LostProcess

_DONE, _INTERRUPTED = "done", "interrupted"
_BEAT = 1.0  # seconds between two signs of life
_LOST = 30.0  # seconds without one after which a process counts as gone
_FAREWELL = 20.0  # seconds that the others have to end when they are told
_LONG = 24 * 3600 * 1000  # milliseconds; whoever waits is ended by jax or by process 0
_PIECE = 1 << 20  # characters of one value in the store

Take = Callable[[list[str]], None]

_attacks = itertools.count()  # every process counts alike: one attack after the other


@dataclasses.dataclass
class _Sign:
    """A process as it is seen from process 0."""

    beat: int = -1
    seen: float = dataclasses.field(default_factory=time.monotonic)
    taken: int = 0  # values of it that were read
    piece: str = ""  # of a line that has not wholly come
    ended: str | None = None


class Processes:
    """The processes of one attack, as one of them sees them.

    They are told by `machine.joined`: the index of this one, how many there are, and
    jax's store of keys and values (None where this process is alone).
    """

    def __init__(self, index: int = 0, count: int = 1, store: Any = None) -> None:
        self.index, self.count = index, count
        self._store, self._name = store, f"gradaudit/{next(_attacks)}"
        self._signs = {other: _Sign() for other in range(1, count)}
        self._over = threading.Event()
        self._speaking = threading.Lock()
        self._beats = self._sent = 0
        self._take: Take = lambda lines: None
        self._stopped = False
        self._ended_by: str | None = None  # process 0's words, if it ended everybody

    @property
    def leads(self) -> bool:
        """Whether this process keeps and reports what all have finished."""
        return self.index == 0

    @property
    def limitations(self) -> list[str]:
        """What to say of a result that this process reports."""
        if self.leads:
            return []
        return [
            f"This is the part of process {self.index} of {self.count}: the others' "
            "victims count as missing here, and process 0 has the result."
        ]

    def part(
        self, attack: str, finished: Iterable[int], victims: int
    ) -> NDArray[np.int64]:
        """Returns whom of so many victims this process attacks: its part of the others.

        Who is finished already, process 0 knows; neighbours share their network. Raises
        where processes were started with different attacks.
        """
        done = self._agreed(attack, finished)
        waiting = np.asarray([i for i in range(victims) if i not in done], np.int64)
        return np.array_split(waiting, self.count)[self.index]

    def _agreed(self, attack: str, finished: Iterable[int]) -> set[int]:
        """Returns who is finished already, as process 0 knows it."""
        if self._store is None:
            return set(finished)
        if self.leads:
            known = json.dumps(sorted(finished))
            self._store.key_value_set(f"{self._name}/attack", attack)
            self._store.key_value_set(f"{self._name}/finished", known)
            return set(finished)
        theirs = self._store.blocking_key_value_get(f"{self._name}/attack", _LONG)
        if theirs != attack:
            raise InputError(
                f"process {self.index} was started with another attack than process 0 "
                "(other options, other files, or another version of gradaudit or jax): "
                "give every process the same command, but for --process"
            )
        known = self._store.blocking_key_value_get(f"{self._name}/finished", _LONG)
        return set(json.loads(known))

    @contextlib.contextmanager
    def together(self, take: Take) -> Iterator[None]:
        """Shows signs of life meanwhile; whatever ends this process, all learn why.

        `take` is told, in process 0, what the others have finished.
        """
        if self._store is None:
            yield
            return
        self._take = take
        alive = threading.Thread(target=self._live, daemon=True)
        alive.start()
        words = "it crashed"
        try:
            yield
            words = _INTERRUPTED if self._stopped else _DONE
            if self._ended_by not in (None, _INTERRUPTED):
                raise LostProcess(f"process 0 ended the run: {self._ended_by}")
        except KeyboardInterrupt:
            words = _INTERRUPTED
            raise
        except Exception as error:
            words = str(error) or type(error).__name__
            raise
        finally:
            if words != _DONE:
                self.stop(words)
            self._over.set()
            alive.join()
            if not self.leads:
                self._speak(words)

    def send(self, lines: Sequence[str]) -> None:
        """Hands finished victims to process 0."""
        if self._store is None or self.leads:
            return
        for line in lines:
            pieces = [line[i : i + _PIECE] for i in range(0, len(line), _PIECE)]
            for number, piece in enumerate(pieces, 1):
                last = "." if number == len(pieces) else "+"
                key = f"{self._name}/victims/{self.index}/{self._sent}"
                self._store.key_value_set(key, last + piece)
                self._sent += 1
        self._speak()

    def listen(self) -> None:
        """Takes what the others have finished since it was last called (process 0).

        Raises if one of them is gone, and `KeyboardInterrupt` if one was interrupted.
        """
        if self._store is None or not self.leads:
            return
        self._receive()
        for other, sign in self._signs.items():
            who = f"process {other} of {self.count}"
            if sign.ended == _DONE:
                continue
            if sign.ended == _INTERRUPTED:
                raise KeyboardInterrupt(f"process {other} was interrupted")
            if sign.ended is not None:
                raise LostProcess(f"{who} ended: {sign.ended}{_ON}")
            if time.monotonic() - sign.seen > _LOST:
                raise LostProcess(
                    f"{who} has not been heard of for {_LOST:g} s: it was "
                    f"killed, or its machine can't be reached{_ON}"
                )

    def wait(self, tell: Callable[[], None]) -> None:
        """Lets process 0 listen until all others are done; tells that it goes on."""
        while self.leads and any(s.ended != _DONE for s in self._signs.values()):
            self.listen()
            tell()
            time.sleep(_BEAT / 10)

    def stop(self, words: str = _INTERRUPTED) -> None:
        """Ends what all are doing; process 0 still takes what they have finished."""
        if self._store is None or self._stopped:
            return
        self._stopped = True
        if not self.leads:
            return
        self._store.key_value_set(f"{self._name}/end/0", words)
        until = time.monotonic() + _FAREWELL
        while time.monotonic() < until and any(
            sign.ended is None and time.monotonic() - sign.seen < _FAREWELL
            for sign in self._signs.values()
        ):
            self._receive()
            time.sleep(_BEAT / 10)

    def _receive(self) -> None:
        lines = []
        for key, value in self._store.key_value_dir_get(f"{self._name}/state/"):
            other, state = int(key.rpartition("/")[2]), json.loads(value)
            sign = self._signs[other]
            if state["beat"] != sign.beat:
                sign.beat, sign.seen = state["beat"], time.monotonic()
            sign.ended = state["ended"]
            lines += self._taken(other, sign, state["sent"])
        if lines:
            self._take(lines)

    def _taken(self, other: int, sign: _Sign, sent: int) -> list[str]:
        lines = []
        while sign.taken < sent:
            key = f"{self._name}/victims/{other}/{sign.taken}"
            value = self._store.blocking_key_value_get(key, _LONG)
            self._store.key_value_delete(key)
            sign.taken += 1
            sign.piece += value[1:]
            if value[0] == ".":
                lines.append(sign.piece)
                sign.piece = ""
        return lines

    def _live(self) -> None:
        """Shows signs of life, and listens whether process 0 ends everybody."""
        while not self._over.wait(_BEAT):
            if self.leads:
                continue
            self._beats += 1
            self._speak()
            for _, words in self._store.key_value_dir_get(f"{self._name}/end/"):
                self._ended_by = words
                interrupt_main()
                return

    def _speak(self, ended: str | None = None) -> None:
        with self._speaking:
            state = {"beat": self._beats, "sent": self._sent, "ended": ended}
            key = f"{self._name}/state/{self.index}"
            self._store.key_value_set(key, json.dumps(state), allow_overwrite=True)


_ON = (
    ". What was finished is kept: start all processes again with the same commands, "
    "and they go on"
)
