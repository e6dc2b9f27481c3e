"""Flower: a client mod and a strategy wrapper that record updates for an audit.

`Recorder` writes what passes at its place in the chain of mods: first in the list, it
sees the wire; last, the update before any defense. `recorded(strategy)` writes what the
server sees. Neither changes a message, and what goes wrong never reaches the training.
"""

import dataclasses
import logging
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gradaudit.record import EVERYTHING, Facts, Sample, log, write

ROUND, CLIP = "server-round", "clipping_norm"  # Flower's words in a config record

_SOFTWARE = "gradaudit, flower"

Told = Mapping[str, Any] | Callable[[Any, Any, Any], Mapping[str, Any]]
_Arrays = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Recorder:
    """A client mod: `@app.train(mods=[Recorder(...), LocalDpMod(...), Recorder(...)])`.

    Args:
      folder: the place of all recordings.
      place: `wire` (first in the chain) or `raw` (last).
      claim: what the defense claims: a mapping (`gradaudit.record.CLAIMS`), or the mod
        itself, as LocalDpMod. A clip that the server sends along is read.
      sample: which rounds and clients, and the bound on disk use.
      facts: what is known beside (`learning_rate`, `local_steps`, `batch_size`,
        `optimizer`): a mapping, or a function of (message, context, reply).
      sent_is: what the client sends: weights, difference or gradient.
    """

    folder: str | pathlib.Path
    place: str = "wire"
    claim: Any = None
    sample: Sample = EVERYTHING
    facts: Told | None = None
    sent_is: str = "weights"

    def __call__(
        self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]
    ) -> Any:
        """Passes the message on, and its reply back, both as they are."""
        received = _quietly(arrays_in, message)  # before anybody works on them
        reply = call_next(message, context)
        if received:
            _quietly(self._record, received, message, context, reply)
        return reply

    def _record(
        self, received: _Arrays, message: Any, context: Any, reply: Any
    ) -> None:
        sent = arrays_in(reply)
        if not sent:  # an error, an evaluation, or secure aggregation
            log.debug("a reply without arrays was not recorded")
            return
        told = self.facts
        claim = claim_of(self.claim) or _clip_sent_along(message)
        facts: dict[str, Any] = {
            "sent": self.sent_is,
            "place": self.place,
            "round": round_of(message),
            "client": _client(context),
            "claim": claim if self.place == "wire" else None,
            "software": _SOFTWARE,
        }
        facts |= told(message, context, reply) if callable(told) else told or {}
        write(pathlib.Path(self.folder), received, sent, Facts(**facts), self.sample)


def recorded(
    strategy: Any,
    folder: str | pathlib.Path,
    replies: bool = True,
    aggregate: bool = True,
    claim: Any = None,
    sample: Sample = EVERYTHING,
    facts: Mapping[str, Any] | None = None,
) -> Any:
    """Returns the strategy, with what the server sees of a round written down.

    Around a strategy with central privacy it sees the aggregate with its noise; inside
    of it (`DifferentialPrivacy...(recorded(FedAvg()))`), the replies as they are
    averaged.

    Args:
      strategy: any strategy of Flower.
      folder: the place of all recordings.
      replies: record each client's reply, as `server`.
      aggregate: record what is released of a round, as `aggregate`.
      claim: what is claimed for the aggregate; see `Recorder`.
      sample: which rounds and clients, and the bound on disk use.
      facts: what is known beside, of the clients.
    """
    from flwr.serverapp.strategy import Strategy

    target, known, said = pathlib.Path(folder), dict(facts or {}), claim_of(claim)

    class Recorded(Strategy):  # type: ignore[misc]
        """Hands everything on to the strategy inside."""

        def __init__(self) -> None:
            super().__init__()
            self.strategy = strategy
            self._sent_out: _Arrays = {}

        def configure_train(
            self, server_round: int, arrays: Any, config: Any, grid: Any
        ) -> Iterable[Any]:
            """Keeps what clients are given in this round."""
            self._sent_out = _quietly(_copies, arrays) or {}
            return self.strategy.configure_train(  # type: ignore[no-any-return]
                server_round, arrays, config, grid
            )

        def aggregate_train(self, server_round: int, replies_: Iterable[Any]) -> Any:
            """Writes the replies and what is made of them."""
            there = list(replies_)
            given = self._sent_out
            arrived = [_quietly(arrays_in, reply) for reply in there]
            result = self.strategy.aggregate_train(server_round, there)
            facts_ = known | {"round": server_round, "software": _SOFTWARE}
            if replies:
                for reply, sent in zip(there, arrived, strict=True):
                    _quietly(_write_reply, target, given, reply, sent, facts_, sample)
            if aggregate and result[0] is not None:
                whole = facts_ | {"claim": said, "clients": sum(map(bool, arrived))}
                _quietly(_write_aggregate, target, given, result[0], whole, sample)
            return result

        # What is not recorded is the inner strategy's, bound to it.
        configure_evaluate = strategy.configure_evaluate
        aggregate_evaluate = strategy.aggregate_evaluate
        summary = strategy.summary

    return Recorded()


def _write_reply(
    folder: pathlib.Path,
    given: _Arrays,
    reply: Any,
    sent: _Arrays | None,
    facts: dict[str, Any],
    sample: Sample,
) -> None:
    if sent and given:
        client = str(reply.metadata.src_node_id)
        own = Facts(place="server", client=client, **facts)
        write(folder, given, sent, own, sample)


def _write_aggregate(
    folder: pathlib.Path,
    given: _Arrays,
    released: Any,
    facts: dict[str, Any],
    sample: Sample,
) -> None:
    if given:
        write(
            folder, given, _copies(released), Facts(place="aggregate", **facts), sample
        )


def arrays_in(message: Any) -> _Arrays:
    """Returns copies of a message's arrays by name; none if it has none."""
    if message.has_error() or not message.has_content():
        return {}
    records = message.content.array_records.values()
    return {
        name: array for record in records for name, array in _copies(record).items()
    }


def _copies(record: Any) -> _Arrays:
    return {str(name): array.numpy().copy() for name, array in record.items()}


def round_of(message: Any) -> int | None:
    """Returns the round that the server says in its config; None if it says none."""
    for config in message.content.config_records.values():
        if ROUND in config:
            return int(config[ROUND])
    return None


def _client(context: Any) -> str:
    return str(context.node_config.get("partition-id", context.node_id))


def _clip_sent_along(message: Any) -> dict[str, Any] | None:
    for config in message.content.config_records.values():
        if CLIP in config:
            return {"clip": float(config[CLIP]), "mechanism": "clipping by the server"}
    return None


def claim_of(defense: Any) -> dict[str, Any] | None:
    """Returns what a defense of Flower claims, from its own attributes.

    Central noise is of the mean: multiplier times clip, over the clients of a round.
    """
    if defense is None or isinstance(defense, Mapping):
        return None if defense is None else dict(defense)
    claim: dict[str, Any] = {"mechanism": type(defense).__name__}
    for name, attribute in (
        ("clip", "clipping_norm"),
        ("sensitivity", "sensitivity"),
        ("epsilon", "epsilon"),
        ("delta", "delta"),
    ):
        value = getattr(defense, attribute, None)
        if value is not None and math.isfinite(value):
            claim[name] = float(value)
    multiplier = getattr(defense, "noise_multiplier", None)
    clients = getattr(defense, "num_sampled_clients", None)
    if multiplier is not None and clients:
        claim["noise_std"] = float(multiplier) * claim.pop("clip", 0.0) / int(clients)
    return claim


def _quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls, and logs what goes wrong: a training is worth more than its recording."""
    try:
        return function(*arguments)
    except Exception as error:
        log.log(logging.WARNING, "an update was not recorded: %s", error)
        return None
