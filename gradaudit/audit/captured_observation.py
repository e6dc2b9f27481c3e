"""Captured updates as observations: in a model's shapes, and checked against it."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import tree
from gradaudit.attacks.base import check_observation
from gradaudit.audit.captured_files import (
    PLACE_OF_TYPE,
    Arrays,
    Capture,
    listed,
    read_capture,
)
from gradaudit.errors import InputError
from gradaudit.models.model import Model, cross_entropy
from gradaudit.record import ABOUT, PLACES, Facts, fill
from gradaudit.types import Leakage, LocalTraining, Observation, PyTree

# What an attack has to know, and what says it on the command line.
ASKED = {
    "learning_rate": "--learning-rate",
    "local_steps": "--local-steps",
    "batch_size": "--batch-size",
}


_ROUNDING = 1.001  # of a bound that holds exactly in real numbers


def observation_of(capture: Capture, model: Model, noisy: bool = False) -> Observation:
    """Returns what an attacker reads, in the shapes of the model; refuses in words.

    `noisy`: noise is known to have been added, whatever the sidecar claims.
    """
    training = _training(capture)
    given, buffers = arranged(model, capture.received, f"{capture.folder}: received")
    moved, shifts = arranged(model, capture.moved(), f"{capture.folder}: sent", False)
    after = jax.tree.map(np.add, buffers, shifts) if shifts else {}
    leakage = Leakage(PLACES[capture.facts.place])
    if capture.facts.sent == "gradient" and leakage is not Leakage.EXAMPLE:
        moved = jax.tree.map(lambda leaf: -training.learning_rate * leaf, moved)
    labels = capture.facts.labels
    observation = Observation(
        params=jax.tree.map(jnp.asarray, given),
        sent=jax.tree.map(jnp.asarray, moved),
        buffers=jax.tree.map(jnp.asarray, buffers),
        sent_buffers=jax.tree.map(jnp.asarray, after),
        labels=None if labels is None else jnp.asarray(labels, jnp.int32),
        leakage=leakage,
        training=training,
    )
    check_observation(model, observation)
    if not (noisy or _claims_noise(capture.facts)):
        _check_output_bias(capture, model, observation)
    return observation


def load_observation(
    folder: pathlib.Path | str, model: Model, noisy: bool = False
) -> Observation:
    """Reads one observation and checks that it fits the model; refuses in words."""
    return observation_of(read_capture(folder), model, noisy)


def _claims_noise(facts: Facts) -> bool:
    """Whether anything but a clip is claimed: who can't say how much, names it."""
    return any(value for name, value in (facts.claim or {}).items() if name != "clip")


def _training(capture: Capture) -> LocalTraining:
    """Returns how the client trained; asks in words for what nobody said."""
    facts = capture.facts
    rate = facts.learning_rate
    if facts.sent == "gradient":  # has its own scale
        facts = dataclasses.replace(
            facts, learning_rate=rate or 1.0, local_steps=facts.local_steps or 1
        )
        facts = dataclasses.replace(facts, optimizer="sgd")
    for name, option in ASKED.items():
        if getattr(facts, name) is None:
            raise InputError(
                f"{capture.folder / ABOUT} does not say {name}, and no attack works "
                f"without it: write it there, or say {option}"
            )
    if facts.optimizer not in (None, "sgd"):
        raise InputError(
            f"{capture.folder / ABOUT}: an update of optimizer {facts.optimizer!r} "
            "can't be replayed yet; sgd can"
        )
    assert facts.batch_size and facts.local_steps and facts.learning_rate
    many = facts.clients or 1
    if many != 1 and facts.local_steps != 1:
        raise InputError(
            f"{capture.folder}: the mean of {many} clients' updates of "
            f"{facts.local_steps} local steps each can't be replayed; of one step it "
            "can"
        )
    return LocalTraining(
        batch_size=facts.batch_size * many,
        local_steps=facts.local_steps,
        learning_rate=float(facts.learning_rate),
    )


def arranged(
    model: Model, tensors: Arrays, what: str, whole: bool = True
) -> tuple[PyTree, PyTree]:
    """Returns named tensors as the model's parameters and buffers.

    A network that comes from another framework knows that framework's names
    (`arrange`); else names are those of the tree, `dense1/kernel` or `dense1.kernel`.
    Tensors that are only numbered are taken in the tree's own order. Unless it is to
    be `whole`, buffers may be left out, and are then the empty dict.
    """
    own = getattr(model.network, "arrange", None)
    if own is not None:
        params, buffers = own(tensors, what, whole)
        return params, buffers
    key = jax.random.key(0)
    trees = [jax.eval_shape(make, key) for make in (model.init, model.initial_buffers)]
    names = [tree.names(shapes) for shapes in trees]
    if set(tensors) == {str(number) for number in range(len(names[0]))}:
        tensors = {name: tensors[str(i)] for i, name in enumerate(names[0])}
    spelled = {name.replace(".", "/"): array for name, array in tensors.items()}
    without = not whole and not set(names[1]) & set(spelled)
    wanted = {*names[0], *(() if without else names[1])}
    missing, unknown = wanted - set(spelled), set(spelled) - wanted
    if missing or unknown:
        raise InputError(
            f"{what} does not hold the parameters of model {model.name!r}: missing "
            f"{listed(missing)}, unknown {listed(unknown)}"
        )
    params = _filled(trees[0], names[0], spelled, what)
    return params, {} if without else _filled(trees[1], names[1], spelled, what)


def _filled(
    shapes: PyTree, names: tuple[str, ...], tensors: Arrays, what: str
) -> PyTree:
    """Returns the tree with its tensors, if they are what it takes."""
    leaves, structure = jax.tree.flatten(shapes)
    for name, shape in zip(names, leaves, strict=True):
        found = tensors[name]
        if found.shape != shape.shape or found.dtype.kind != shape.dtype.kind:
            raise InputError(
                f"{what}: {name} must be {shape.dtype} of shape {shape.shape}, got "
                f"{found.dtype} {found.shape}"
            )
    return jax.tree.unflatten(structure, [tensors[name] for name in names])


def _check_output_bias(
    capture: Capture, model: Model, observation: Observation
) -> None:
    """Raises if the last bias moved as no cross-entropy and learning rate can move it.

    Its gradient is a mean of softmax - one-hot: no entry leaves [-1, 1] in a step, and
    no more entries are negative than there are examples. Noise may break both.
    """
    layer = model.output_layer
    if layer is None or model.example_loss is not cross_entropy:
        return
    bias = observation.gradient[layer].get("bias")
    if bias is None or bias.shape != (model.classes,):
        return
    training = observation.training
    reached, steps = float(jnp.max(jnp.abs(bias))), training.local_steps
    doubt = (
        ' Or noise was added: then the sidecar must say so, "claim": {"mechanism": '
        '"name"}.'
    )
    if not reached <= steps * _ROUNDING + 1e-6:
        raise InputError(
            f"{capture.folder}: the learning rate {training.learning_rate:g} "
            f"contradicts the update: in {steps} step(s) the output bias can move by "
            f"{training.learning_rate * steps:g} at most, and it moved by "
            f"{reached * training.learning_rate:.3g}.{doubt}"
        )
    negative = int(jnp.sum(bias < -1e-3 * reached))
    if not negative <= training.examples:
        raise InputError(
            f"{capture.folder}: the output bias grew for {negative} classes, and only "
            f"{training.examples} example(s) were used: received and sent are swapped, "
            f"or batch_size is wrong.{doubt}"
        )


def save_observation(folder: pathlib.Path | str, observation: Observation) -> None:
    """Writes one observation; `load_observation` reads an equal one."""
    target = pathlib.Path(folder)
    labels, training = observation.labels, observation.training
    facts = Facts(
        sent="gradient" if observation.leakage is Leakage.EXAMPLE else "difference",
        place=PLACE_OF_TYPE[int(observation.leakage)],
        labels=None if labels is None else np.asarray(labels).tolist(),
        **dataclasses.asdict(training),
    )
    received = tree.named(observation.params) | tree.named(observation.buffers)
    shifts = {
        name: after - received[name]
        for name, after in tree.named(observation.sent_buffers).items()
    }
    target.mkdir(parents=True, exist_ok=True)
    fill(target, received, tree.named(observation.sent) | shifts, facts)
