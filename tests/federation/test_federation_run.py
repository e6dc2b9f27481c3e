"""Whole trainings: who is selected, when it stops, and that it can be resumed."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit import defenses
from gradaudit.data import load_dataset
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError
from gradaudit.federation import checkpoint
from gradaudit.federation import round as rounds
from gradaudit.federation.checkpoint import RunFolder, load_round
from gradaudit.federation.recipe import Population, Recipe
from gradaudit.federation.round import run_round
from gradaudit.federation.setting import Setting
from gradaudit.federation.training import (
    ActiveSelection,
    FixedSize,
    Poisson,
    Stopped,
    Training,
    train_until,
)
from gradaudit.models.model import from_function
from gradaudit.models.networks import build_model
from gradaudit.spec import Spec

KEY = jax.random.key(5)
SAMPLERS = {
    "fixed": FixedSize(20, 6),
    "poisson": Poisson(20, 6),
    "active": ActiveSelection(20, 6, dropped=0.5, explored=1 / 3),
}
SIZES = np.arange(1, 21)


@pytest.mark.parametrize("name", SAMPLERS)
def test_selection_is_inside_unique_and_repeatable(name):
    sampler = SAMPLERS[name]
    values = sampler.init(SIZES)
    counts = []
    for seed in range(30):
        chosen = sampler.select(jax.random.key(seed), values)
        again = sampler.select(jax.random.key(seed), values)
        np.testing.assert_array_equal(chosen, again)
        assert len(set(chosen.tolist())) == len(chosen)
        assert all(0 <= client < 20 for client in chosen)
        counts.append(len(chosen))
        values = sampler.learn(values, chosen, np.ones(len(chosen)), SIZES)
    if name == "poisson":
        assert 4.5 < np.mean(counts) < 7.5 and len(set(counts)) > 1
    else:
        assert set(counts) == {6}


def test_active_selection_prefers_high_loss_and_drops_the_rest():
    sampler = ActiveSelection(20, 4, dropped=0.5, sharpness=1e4, explored=0.0)
    clients = np.arange(20)
    sizes = np.full(20, 10)
    values = sampler.learn(sampler.init(sizes), clients, clients / 20.0, sizes)
    for seed in range(5):
        chosen = sampler.select(jax.random.key(seed), values)
        assert set(chosen.tolist()) == {16, 17, 18, 19}
    flat = dataclasses.replace(sampler, sharpness=0.0)
    seen = {c for s in range(40) for c in flat.select(jax.random.key(s), values)}
    assert seen == set(range(10, 20))  # the smaller half is dropped


def test_active_selection_explores_and_starts_uniformly():
    sampler = ActiveSelection(20, 4, dropped=0.8, sharpness=1e4, explored=0.5)
    fresh = sampler.init(SIZES)
    seen = {c for s in range(40) for c in sampler.select(jax.random.key(s), fresh)}
    assert seen == set(range(20))
    values = sampler.learn(fresh, np.array([3, 4]), np.array([1.0, 2.0]), SIZES)
    np.testing.assert_allclose(values[[3, 4]], [4 / 210, 10 / 210], rtol=1e-6)
    for seed in range(5):
        chosen = sampler.select(jax.random.key(seed), values)
        assert {3, 4} <= set(chosen.tolist()) and len(chosen) == 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedSize(5, 6), "1..5, got 6"),
        (lambda: Poisson(5, 0), "1..5, got 0"),
        (lambda: ActiveSelection(10, 2, dropped=1.5), "dropped must lie"),
        (lambda: ActiveSelection(10, 5, dropped=0.9), "leaves 1"),
    ],
)
def test_impossible_samplers_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


SETTING = Setting(
    clients=8, clients_per_round=3, local_steps=4, batch_size=4, rounds=6, examples=40
)


@pytest.fixture(scope="module")
def training() -> Training:
    data = load_dataset("cancer", "train")
    model = build_model("mlp", data.shape, data.classes)
    held = np.random.default_rng(0).integers(0, len(data), (8, 40))
    return Training(
        recipe=Recipe.of(model, defenses.fed_cdp(clip=1.0, sigma=0.05), SETTING),
        population=Population.of(data, held),
        sampler=ActiveSelection(8, 3, dropped=0.25),
        validation=load_dataset("cancer", "test"),
    )


def begin(training: Training):
    return training.start(training.recipe.model.init(jax.random.key(1)))


SPEC = Spec("train", {"seed": 5})


def open_folder(path, training, overwrite=False, fingerprint="this", **options):
    folder = RunFolder(path, SPEC, fingerprint, **options)
    start = folder.open(begin(training), resume=False, overwrite=overwrite)
    return folder, training.placed(start)


def train_in(path, training, rounds, **options):
    folder, start = open_folder(path, training, **options)
    progress, stopped = train_until(training, KEY, start, rounds, on_round=folder.keep)
    folder.close(progress)
    return folder, progress


def assert_same_bits(one, two):
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_resumed_training_ends_in_the_same_bits(training, tmp_path):
    whole, progress = train_in(tmp_path / "whole", training, 6)
    train_in(tmp_path / "parts", training, 3)
    resumed, later = train_in(tmp_path / "parts", training, 6)
    assert_same_bits((progress.state, progress.values), (later.state, later.values))
    assert [r.round for r in whole.history] == [1, 2, 3, 4, 5, 6]
    for one, two in zip(whole.history, resumed.history, strict=True):
        same = dataclasses.replace(one, seconds=two.seconds)
        assert same == two and one.participants


def test_a_crash_at_any_moment_leaves_a_history_that_fits(training, tmp_path):
    """Killed while a line is written, or between the line and the checkpoint."""
    whole, _ = train_in(tmp_path, training, 4)
    history = tmp_path / "history.jsonl"
    good = history.read_bytes()
    beyond = good.splitlines()[-1].replace(b'"round": 4', b'"round": 5')
    for extra in (b'{"round": 5, "accur', beyond + b"\n", beyond + b"\n" + b'{"ro'):
        history.write_bytes(good + extra)
        folder, start = open_folder(tmp_path, training)
        assert int(start.state.round) == 4 and folder.history == whole.history
        assert history.read_bytes() == good
    history.write_bytes(good[:-200])
    with pytest.raises(InputError, match="the history .* ends at round 3"):
        open_folder(tmp_path, training)


def test_recorded_rounds_are_what_the_training_had(training, tmp_path):
    seen = {}
    folder, start = open_folder(tmp_path, training)

    def watch(progress):
        seen[progress.last.round] = (progress.began, progress.last.participants)
        folder.keep(progress)

    progress, _ = train_until(training, KEY, start, 6, on_round=watch)
    folder.close(progress)
    names = sorted(path.name for path in (tmp_path / "rounds").iterdir())
    assert names == [f"{n:06d}.npz" for n in (1, 2, 4, 6)]  # and the last
    for number in (1, 2, 4, 6):
        found = load_round(tmp_path, number)
        began, participants = seen[number]
        assert found.participants == participants and found.spec == SPEC
        assert int(found.state(start.state).round) == number - 1
        assert_same_bits(found.state(start.state), began)
    with pytest.raises(InputError, match=r"not recorded \(there are: 1, 2, 4, 6\)"):
        load_round(tmp_path, 5)
    with pytest.raises(InputError, match="holds no recorded rounds"):
        load_round(tmp_path / "nowhere", 5)


@pytest.mark.parametrize(("record", "kept"), [(3, {1, 3, 6, 7}), ((2, 5), {2, 5, 7})])
def test_other_rounds_can_be_recorded(training, tmp_path, record, kept):
    train_in(tmp_path, training, 7, record=record)
    assert {int(path.stem) for path in (tmp_path / "rounds").iterdir()} == kept


def test_a_folder_of_another_training_is_not_overwritten_silently(training, tmp_path):
    train_in(tmp_path, training, 2)
    before = (tmp_path / "checkpoint.npz").read_bytes()
    with pytest.raises(InputError, match="holds another training"):
        open_folder(tmp_path, training, fingerprint="that")
    assert (tmp_path / "checkpoint.npz").read_bytes() == before
    folder, start = open_folder(tmp_path, training, overwrite=True, fingerprint="that")
    assert int(start.state.round) == 0 and not folder.history
    assert not (tmp_path / "checkpoint.npz").exists()
    assert not list((tmp_path / "rounds").iterdir())
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(InputError, match="another run's result"):
        open_folder(tmp_path, training)


def test_checkpoints_that_do_not_fit_are_refused(training, tmp_path):
    path = tmp_path / "checkpoint.npz"
    with pytest.raises(InputError, match="there is no checkpoint"):
        checkpoint.load(tmp_path, begin(training), "this")
    train_in(tmp_path, training, 1)
    with pytest.raises(InputError, match="another training"):
        checkpoint.load(tmp_path, begin(training), "that")
    wider = build_model("mlp", (31,), 2).init(KEY)
    with pytest.raises(InputError, match="does not fit"):
        checkpoint.load(tmp_path, training.start(wider), "this")
    for damaged in (path.read_bytes()[:-100], b""):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="can't be read"):
            checkpoint.load(tmp_path, begin(training), "this")


def test_a_round_is_compiled_once_and_progress_does_not_grow(training):
    rounds._round.clear_cache()
    progress, _ = train_until(training, KEY, begin(training), 3)
    assert rounds._round._cache_size() == 1
    assert {field.name for field in dataclasses.fields(progress)} == {
        "state", "values", "last", "began",
    }  # fmt: skip


def tiny() -> Training:
    """A training whose rounds cost next to nothing."""
    data = load_dataset("cancer", "train")
    net = from_function(
        lambda params, inputs: inputs @ params["w"],
        lambda key: {"w": 0.01 * jax.random.normal(key, (30, 2))},
        (30,),
        2,
    )
    setting = dataclasses.replace(SETTING, local_steps=1, clients_per_round=1)
    return Training(
        recipe=Recipe.of(net, defenses.none(), setting),
        population=Population.of(data, np.arange(320).reshape(8, 40)),
        sampler=FixedSize(8, 1),
        validation=load_dataset("cancer", "test"),
        evaluate_every=100,
    )


def test_a_checkpoint_keeps_its_size_and_a_round_adds_one_line(tmp_path):
    training, sizes, lines = tiny(), [], []
    for done in (8, 16, 96):
        train_in(tmp_path, training, done, record=(1,))
        sizes.append((tmp_path / "checkpoint.npz").stat().st_size)
        lines.append((tmp_path / "history.jsonl").stat().st_size / done)
    assert max(sizes) <= min(sizes) + 8  # the digits of the round
    assert max(lines) <= 1.2 * min(lines)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_rounds_cost_the_same_each(tmp_path):
    """The last 500 rounds in turn with the first of another run: same busy machine."""
    training, old, new = tiny(), tmp_path / "old", tmp_path / "new"
    train_in(old, training, 100)
    early = (old / "checkpoint.npz").stat().st_size
    train_in(old, training, 9_500)
    parts = {path: open_folder(path, training) for path in (old, new)}
    costs = {old: [], new: []}
    for _ in range(500):
        for path, (folder, progress) in parts.items():
            began = time.perf_counter()
            progress = training.advance(KEY, progress)
            folder.keep(progress)
            costs[path].append(time.perf_counter() - began)
            parts[path] = folder, progress
    assert progress.last.round == 500 and parts[old][1].last.round == 10_000
    assert (old / "checkpoint.npz").stat().st_size <= 1.2 * early
    late, fresh = (1e3 * np.median(costs[path][20:]) for path in (old, new))
    print(f"ms per round: {fresh:.2f} from the first, {late:.2f} to the 10,000th")
    assert late <= 1.2 * fresh


def counting(point: str, state) -> Defense:
    """A defense with a transform that keeps this state."""

    @dataclasses.dataclass(frozen=True)
    class Keeps:
        def init(self, params):
            return state()

        def apply(self, key, tree, state, t):
            return tree, state

    return Defense("keeps", **{point: (Keeps(),)})


STATES = {"an integer": lambda: jnp.asarray(3), "a key": lambda: jax.random.key(0)}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n == "a key")) for n in STATES],
)
def test_states_that_can_not_be_averaged_are_refused(training, tmp_path, name):
    def with_state(point):
        guard = counting(point, STATES[name])
        recipe = Recipe.of(training.recipe.model, guard, SETTING)
        return dataclasses.replace(training, recipe=recipe)

    for point in ("per_example", "update"):
        with pytest.raises(InputError, match="states are averaged"):
            begin(with_state(point))
    served = with_state("server")  # one state for all: nothing is averaged
    _, progress = train_in(tmp_path, served, 1)
    folder, start = open_folder(tmp_path, served)
    kept, loaded = jax.tree.leaves((progress.state.server, start.state.server))
    assert kept.dtype == loaded.dtype and bool(kept == loaded)


def test_clients_states_are_averaged_over_the_clients_of_the_round(training):
    """The rule of the contract: the mean over those who took part."""
    recipe = Recipe.of(training.recipe.model, defenses.quantile_clip(), SETTING)
    adaptive = dataclasses.replace(training, recipe=recipe)
    start = begin(adaptive)
    after = [
        run_round(
            recipe, adaptive.population, KEY, start.state, np.array(who), width=2
        )[0]
        for who in ([1], [4], [1, 4])
    ]
    one, two, both = (jax.tree.leaves(s.per_example)[0] for s in after)
    assert one != two
    assert float(both) == pytest.approx((float(one) + float(two)) / 2, rel=1e-5)


def test_targets_and_interrupts_stop_at_a_finished_round(training):
    progress, stopped = train_until(training, KEY, begin(training), 6, 0.01)
    assert stopped is Stopped.ACCURACY and progress.last.round == 1
    again, stopped = train_until(training, KEY, progress, 6, 0.01)
    assert stopped is Stopped.ACCURACY and again is progress

    def interrupt(progress):
        if progress.last.round == 2:
            raise KeyboardInterrupt

    progress, stopped = train_until(
        training, KEY, begin(training), 6, on_round=interrupt
    )
    assert stopped is Stopped.INTERRUPTED and int(progress.state.round) == 2


def test_a_model_that_explodes_stops_the_training(training):
    recipe = dataclasses.replace(training.recipe, per_example=(), learning_rate=1e30)
    wild = dataclasses.replace(training, recipe=recipe)
    _, stopped = train_until(wild, KEY, begin(wild), 6)
    assert stopped is Stopped.DIVERGED


def test_validation_can_be_rarer(training):
    rare = dataclasses.replace(training, evaluate_every=2)
    measured = []
    train_until(
        rare, KEY, begin(rare), 3, on_round=lambda p: measured.append(p.last.accuracy)
    )
    assert [accuracy is not None for accuracy in measured] == [False, True, False]


def test_small_clients_are_refused(training):
    recipe = dataclasses.replace(training.recipe, batch_size=41)
    with pytest.raises(InputError, match="holds 40 examples, fewer than"):
        dataclasses.replace(training, recipe=recipe)
