"""The parts on their own: schedules, parsing, refusals, compression, layers, LDP."""

import importlib
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer

import gradaudit.defenses as defenses
from gradaudit.cli.console import errors_in_words
from gradaudit.defenses import parse, schedules
from gradaudit.defenses.adaptive import QuantileClip
from gradaudit.defenses.clipping import Scope
from gradaudit.defenses.compression import Prune, Sign, TopK
from gradaudit.defenses.layers import (
    DenseLayers,
    LayerwiseLaplace,
    NamedLayers,
    layer_names,
)
from gradaudit.defenses.local import debias_factor, randomize
from gradaudit.errors import InputError
from gradaudit.mechanism import NoiseKind, Point
from gradaudit.models.networks import build_model

ROOT = pathlib.Path(__file__).parents[2]
SCHEDULES = [
    schedules.Constant(3.0),
    schedules.decay("linear", 15.0, 4.85, 100),
    schedules.decay("staircase", 15.0, 4.85, 100),
    schedules.decay("exponential", 15.0, 4.85, 100),
    schedules.CosineCycles(15.0, 2, 100),
    schedules.TriangleCycles(6.0, 0.01, 10, 0.05, 100),
    schedules.decay("inverse-linear", 15.0, 4.85, 100),
    schedules.Table((3.0, 2.0, 1.0)),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_a_schedule_is_one_function_for_ints_and_traced_rounds(schedule):
    traced = jax.jit(jax.vmap(schedule))(jnp.arange(150))
    plain = [schedule(t) for t in range(150)]
    assert all(type(value) is float and value > 0 for value in plain)
    np.testing.assert_allclose(traced, plain, rtol=1e-5)
    assert schedule(10**6) == plain[-1]  # held after the last round
    assert hash(schedule) == hash(schedule) and schedule == schedule


def test_schedules_follow_the_printed_formulas():
    t = 37
    assert schedules.Linear(15.0, 0.005, 100)(t) == pytest.approx(15 * (1 - 0.005 * t))
    assert schedules.Staircase(15.0, 0.05, 10, 100)(t) == pytest.approx(
        15 * (1 - 0.05 * 3)
    )
    assert schedules.Exponential(15.0, 0.01, 100)(t) == pytest.approx(
        15 * math.exp(-0.01 * t)
    )
    # The paper counts rounds from 1 and restarts every ceil(T / cycles).
    cosine = 7.5 * (math.cos(math.pi * (t % 50) / 50) + 1)
    assert schedules.CosineCycles(15.0, 2, 100)(t) == pytest.approx(cosine)
    assert schedules.CosineCycles(15.0, 2, 100)(50) == pytest.approx(15.0)
    # 1 / sigma linear: epsilon_0(t) = 0.307468 + 1e-4 t at delta = 1e-5.
    scale = math.sqrt(2 * math.log(1.25e5))
    inverse = schedules.InverseLinear(scale / 0.307468, 1e-4 / 0.307468, 10_000)
    assert scale / inverse(9_000) == pytest.approx(0.307468 + 0.9)
    triangle = schedules.TriangleCycles(6.0, 0.05, 10, 0.1, 100)
    assert triangle(0) == 6.0 and triangle(10) == pytest.approx(3.0)
    assert triangle(15) == pytest.approx(4.5) and triangle(20) == pytest.approx(5.4)


@pytest.mark.parametrize("policy", schedules.POLICIES)
def test_every_policy_decays(policy):
    schedule = schedules.decay(policy, 15.0, 4.85, 100)
    assert schedule(0) == pytest.approx(15.0)
    assert min(schedule(t) for t in range(100)) < 15.0


def test_a_schedule_from_a_file(tmp_path):
    path = tmp_path / "sigma.txt"
    path.write_text("6.0, 5.0\n4.0\n")
    (mechanism,) = parse(f"fed-cdp:sigma=@{path}").mechanisms
    assert [mechanism.multiplier(t) for t in range(4)] == [6.0, 5.0, 4.0, 4.0]
    path.write_text("6.0 0.0")
    with pytest.raises(InputError, match=r"got 0\.0 in round 1"):
        parse(f"fed-cdp:sigma=@{path}")


INVALID = {
    "fed-cdp:sigma=-1": "sigma must be finite and not negative, got -1.0",
    "fed-cdp:clip=-4": "clip must be positive and finite, got -4.0",
    "fed-cdp:clip=0": "clip must be positive and finite, got 0.0",
    "fed-cdp:clip=nan": "clip must be positive and finite, got nan",
    "fed-cdp:sigma=linear/15/0/100": "end must lie in .*got end=0.0",
    "fed-cdp:sigma=linear/15/20/100": "end must lie in .*got end=20.0",
    "fed-cdp:sigma=linear/15": "write policy/start/end/rounds, got 'linear/15'",
    "fed-cdp:sigma=cosine/15/5/100": "unknown decay policy 'cosine'",
    "fed-cdp:sigma=@missing.txt": "can't read the schedule missing.txt",
    "fed-cdp:sigma=six": "sigma must be a number or a schedule, got 'six'",
    "fed-cdp:noise_at=nowhere": "must be per_example or batch, got 'nowhere'",
    "fed-cdp:sgima=6": "did you mean 'sigma'",
    "fed-cdp:sigma": "write key=value, got 'sigma'",
    "fed-cdp-decay:end=-2": "got end=-2.0",
    "fed-cdp-decay:rounds=0": "rounds must be at least 1, got 0",
    "fed-alpha-cdp-sigma:policy=steps": "unknown decay policy 'steps'",
    "gaussian-noise:std=-0.1": "std must not be negative, got -0.1",
    "laplace-noise:scale=-0.1": "scale must not be negative, got -0.1",
    "prune:ratio=1.5": r"ratio must lie in \[0, 1\].*got 1.5",
    "prune:ratio=-0.1": r"ratio must lie in \[0, 1\].*got -0.1",
    "dssgd:share=0": r"share must lie in \(0, 1\], got 0.0",
    "dssgd:threshold=-1": "threshold must not be negative, got -1.0",
    "dssgd-noise:epsilon=0": "epsilon must be positive and finite, got 0.0",
    "quantile-clip:quantile=0": r"quantile must lie in \(0, 1\), got 0.0",
    "quantile-clip:quantile=1": r"quantile must lie in \(0, 1\), got 1.0",
    "quantile-clip:sigma=10": "sigma must be below 2 . count_sigma = 10.0, got 10.0",
    "quantile-clip:sigma=6,count_sigma=3": "count_sigma = 6.0, got 6.0",
    "quantile-clip:rate=0": "rate must be positive, got 0.0",
    "adaclip:sigma=-1": "sigma must not be negative, got -1.0",
    "adaclip:mean_decay=1": r"mean_decay must lie in \[0, 1\), got 1.0",
    "dpfl:epsilon=-1": "epsilon must be positive and finite, got -1.0",
    "dpfl:alpha=0": "alpha must be positive|sensitivity must be positive",
    "dpfl:learning_rate=0": "learning_rate must be positive, got 0.0",
    "dpfl:importance=conv1*0": "importance of 'conv1' must be positive, got 0.0",
    "lip:epsilon=0": "epsilon must be positive and finite, got 0.0",
    "ldp-sgd:epsilon=0": "epsilon must be positive and finite, got 0.0",
    "ldp-sgd:clip=-1": "clip must be positive and finite, got -1.0",
    "fed-cpd": "unknown defense 'fed-cpd'; did you mean 'fed-cdp'",
    "fed-cdp + ": "missing beside a '.'",
    "nowhere.py:mine": "there is no file nowhere.py",
}


@pytest.mark.parametrize("text", INVALID)
def test_invalid_parameters_are_named_and_exit_2(text, capsys):
    with pytest.raises(InputError, match=INVALID[text]):
        parse(text)
    with pytest.raises(typer.Exit) as exit_info, errors_in_words():
        parse(text)
    assert exit_info.value.exit_code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_decay_that_dies_before_the_last_round_is_refused():
    with pytest.raises(InputError, match="got 0 in round 50 of 100"):
        schedules.Linear(15.0, 0.02, 100)
    assert schedules.Linear(15.0, 0.02, 50)(49) > 0
    with pytest.raises(InputError, match="in round 40 of 100"):
        schedules.Staircase(15.0, 0.25, 10, 100)
    with pytest.raises(InputError, match="in round"):
        schedules.TriangleCycles(6.0, 0.05, 10, 0.5, 100)
    for rate in (0.0, 1.0, -0.1):
        with pytest.raises(InputError, match=r"rate must lie in \(0, 1\)"):
            schedules.Exponential(15.0, rate, 100)


def test_parse_gives_what_python_gives():
    assert parse("fed-cdp") == defenses.fed_cdp()
    assert parse("fed-cdp:clip=2,sigma=3") == defenses.fed_cdp(clip=2.0, sigma=3.0)
    batch = defenses.fed_cdp(noise_at=defenses.NoiseAt.BATCH, scope=Scope.GLOBAL)
    assert parse("fed-cdp:noise-at=batch,scope=global") == batch
    at_server = defenses.prune(ratio=0.5, at=Point.SERVER)
    assert parse("prune:ratio=0.5,at=server") == at_server
    assert parse("lip:layers=conv1/output") == defenses.lip(layers=("conv1", "output"))
    assert parse("ldp-sgd:as_printed=true") == defenses.ldp_sgd(as_printed=True)


def test_defenses_chain_in_order():
    both = parse("prune:ratio=0.3,at=per_example + fed-cdp")
    assert [type(part).__name__ for part in both.per_example] == [
        "Prune",
        "Clip",
        "GaussianNoise",
    ]
    assert both.name == "prune + fed-cdp"
    assert both.mechanisms == defenses.fed_cdp().mechanisms
    spread = parse("fed-cdp + fed-sdp")
    assert {m.point for m in spread.mechanisms} == {Point.PER_EXAMPLE, Point.SERVER}


def test_claims_are_derived():
    (plain,) = defenses.gaussian_noise(std=0.1).mechanisms
    assert plain.clip(0) is None and "no differential privacy" in plain.caveats[0]
    (alpha,) = defenses.fed_alpha_cdp().mechanisms
    assert alpha.data_dependent and any("l2-max" in text for text in alpha.caveats)
    (joint,) = defenses.fed_cdp(scope=Scope.GLOBAL).mechanisms
    assert not joint.per_tensor and joint.caveats == ()
    (per_tensor,) = defenses.fed_cdp().mechanisms
    assert per_tensor.per_tensor and "sqrt(M)" in per_tensor.caveats[0]
    (batch,) = defenses.fed_cdp(noise_at=defenses.NoiseAt.BATCH).mechanisms
    assert batch.on_batch_sum and any("type 2" in text for text in batch.caveats)
    (partial,) = defenses.lip().mechanisms
    assert partial.clip(0) is None and partial.coordinates == "dense layers"
    (ldp,) = defenses.ldp_sgd(epsilon=2.0).mechanisms
    assert ldp.kind is NoiseKind.RANDOMIZER and ldp.multiplier(0) == 2.0
    (dpfl,) = defenses.dpfl().mechanisms
    assert "scaled to 0.02 while the clip allows 2" in dpfl.caveats[0]
    assert defenses.dpfl(learning_rate=1.0).mechanisms[0].caveats == ()
    gradient, count = defenses.quantile_clip().mechanisms
    joint_sigma = (gradient.multiplier(0) ** -2 + count.multiplier(0) ** -2) ** -0.5
    assert joint_sigma == pytest.approx(6.0)


def test_a_sign_between_clip_and_noise_breaks_the_claim():
    clip, noise = defenses.fed_cdp().per_example
    pruned = defenses.defend("", per_example=(clip, Prune(0.5), noise))
    assert pruned.mechanisms == defenses.fed_cdp().mechanisms
    signed = defenses.defend("", per_example=(clip, Sign(), noise))
    assert signed.mechanisms[0].clip(0) is None


def _apply(transform, tree, seed=0):
    state = transform.init(jax.tree.map(lambda leaf: leaf[0], tree))
    return transform.apply(jax.random.key(seed), tree, state, 0)[0]


def test_pruning_drops_the_smallest_globally_or_per_tensor():
    tree = {"a": jnp.array([[1.0, -2.0, 3.0, 4.0]]), "b": jnp.array([[10.0, -20.0]])}
    out = _apply(Prune(0.5), tree)
    np.testing.assert_array_equal(out["a"], [[0, 0, 0, 4.0]])
    np.testing.assert_array_equal(out["b"], [[10.0, -20.0]])
    out = _apply(Prune(0.5, Scope.TENSOR), tree)
    np.testing.assert_array_equal(out["a"], [[0, 0, 3.0, 4.0]])
    np.testing.assert_array_equal(out["b"], [[0, -20.0]])
    everything = _apply(Prune(1.0), tree)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(everything))
    top = _apply(TopK(2), tree)
    np.testing.assert_array_equal(top["b"], [[10.0, -20.0]])
    assert np.all(top["a"] == 0)
    np.testing.assert_array_equal(_apply(Sign(), tree)["b"], [[15.0, -15.0]])
    for part in (Prune(0.5), Prune(1.0), TopK(1), Sign()):
        broken = {"a": jnp.array([[1.0, jnp.nan, jnp.inf]])}
        assert not np.all(np.isfinite(_apply(part, broken)["a"]))


def test_selection_sends_a_random_share_above_the_threshold():
    transform = defenses.dssgd(share=0.25, threshold=0.5).update[0]
    tree = {"a": jnp.tile(jnp.arange(8.0) / 8, (1000, 1))}
    out = np.asarray(_apply(transform, tree)["a"])
    sent = out != 0
    assert np.all(sent.sum(1) == 2) and not np.any(sent[:, :5])
    np.testing.assert_array_equal(out[sent], np.asarray(tree["a"])[sent])
    shares = sent[:, 5:].mean(0)
    np.testing.assert_allclose(shares, 2 / 3, atol=0.07)  # evenly among the eligible


def test_quantile_clip_finds_the_median():
    transform = QuantileClip(clip=0.1, sigma=0.0)
    tree = {"a": jnp.linspace(1.0, 3.0, 101)[:, None]}
    state = transform.init({"a": jnp.zeros(1)})
    step = jax.jit(lambda state: transform.apply(jax.random.key(0), tree, state, 0)[1])
    for _ in range(200):
        state = step(state)
    assert float(state) == pytest.approx(2.0, abs=0.1)


def test_adaclip_follows_the_published_update():
    sigma, units = 0.5, 4
    transform = defenses.adaclip(clip=2.0, sigma=sigma).per_example[0]
    state = transform.init({"a": jnp.zeros(3)})
    key = jax.random.key(0)
    tree = {"a": jax.random.normal(key, (units, 3)) * jnp.array([3.0, 1.0, 0.1])}
    for t in range(3):
        mean, variance = np.asarray(state.mean[0]), np.asarray(state.variance[0])
        scale = np.sqrt(np.sqrt(variance) * np.sqrt(variance).sum())  # b
        out, state = transform.apply(jax.random.fold_in(key, t), tree, state, t)
        released = np.asarray(out["a"]).mean(0)
        seen = (released - mean) ** 2 - (sigma * scale) ** 2 / units
        expected = 0.9 * variance + 0.1 * np.clip(seen, 1e-12, 10.0)
        np.testing.assert_allclose(state.variance[0], expected, rtol=1e-4)
        expected = 0.99 * mean + 0.01 * released
        np.testing.assert_allclose(state.mean[0], expected, rtol=1e-4, atol=1e-6)
    assert len(set(np.asarray(scale).round(4).tolist())) == 3  # no longer even


def test_layers_are_named_and_chosen():
    model = build_model("dpfl-2conv", (8, 8, 1), 4)
    params = model.init(jax.random.key(0))
    units = jax.tree.map(lambda leaf: leaf[None], params)
    names = layer_names(params)
    assert set(names) == {"conv1", "conv2", "output"}
    dense = [n for n, on in zip(names, DenseLayers().of(units), strict=True) if on]
    assert set(dense) == {"output"} and len(dense) == 2
    with pytest.raises(InputError, match="no layer 'conv9'.*conv1, conv2, output"):
        NamedLayers(("conv9",)).of(units)
    assert layer_names([jnp.zeros(1), jnp.zeros(1)]) == ["0", "1"]


def test_partial_noise_leaves_the_other_layers_alone():
    units = jax.tree.map(
        lambda leaf: leaf[None],
        build_model("dpfl-2conv", (8, 8, 1), 4).init(jax.random.key(0)),
    )
    noise = defenses.lip(layers=("conv1", "output")).update[1]
    out = _apply(noise, units)
    np.testing.assert_array_equal(out["conv2"]["kernel"], units["conv2"]["kernel"])
    for layer in ("conv1", "output"):
        assert np.all(out[layer]["kernel"] != units[layer]["kernel"])


def test_pogz_splits_the_budget():
    model = build_model("dpfl-2conv", (8, 8, 1), 4)
    params = model.init(jax.random.key(0))
    inputs = jax.random.uniform(jax.random.key(1), (6, 8, 8, 1))
    importance = defenses.pogz(model, params, inputs)
    assert [name for name, _ in importance] == ["conv1", "conv2", "output"]
    logits = model.apply(params, {}, inputs)
    assert importance[-1][1] == pytest.approx(float(jnp.mean(logits > 0)))
    noise = LayerwiseLaplace(2.0, 1.0, importance)
    budgets = dict(zip(layer_names(params), noise.budgets(params), strict=True))
    assert sum(budgets.values()) == pytest.approx(2.0)
    shares = dict(importance)
    ratio = budgets["conv1"] / budgets["conv2"]
    assert ratio == pytest.approx(shares["conv1"] / shares["conv2"])
    with pytest.raises(InputError, match="no importance for layer 'conv2'"):
        LayerwiseLaplace(1.0, 1.0, (("conv1", 0.5),)).budgets(params)


def test_randomizer_is_unbiased_and_on_the_sphere():
    gradient = jnp.array([0.3, -0.2, 0.1, 0.0, 0.4])
    keys = jax.random.split(jax.random.key(0), 200_000)
    answer = jax.jit(jax.vmap(randomize, in_axes=(0, None, None, None)))
    answers = answer(keys, gradient, 1.0, 1.0)
    np.testing.assert_allclose(np.linalg.norm(answers, axis=1), 1.0, rtol=1e-5)
    factor = debias_factor(5, 1.0, 1.0)
    error = factor * np.asarray(answers, np.float64).mean(0) - np.asarray(gradient)
    assert np.max(np.abs(error)) < 6 * factor / math.sqrt(5 * 200_000)
    assert debias_factor(5, 1.0, 1.0, as_printed=True) == pytest.approx(factor / 5)
    assert math.isfinite(debias_factor(10**7, 0.5, 1.0))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomizer_agrees_with_probability_e_eps(epsilon):
    gradient = 100.0 * jnp.array([1.0, 2.0, -2.0])  # clipped: the norm coin is certain
    keys = jax.random.split(jax.random.key(1), 200_000)
    answer = jax.jit(jax.vmap(randomize, in_axes=(0, None, None, None)))
    agree = float(jnp.mean(answer(keys, gradient, epsilon, 1.0) @ gradient > 0))
    expected = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert agree == pytest.approx(expected, abs=0.006)
    zero = answer(keys[:1000], jnp.zeros(3), epsilon, 1.0)
    np.testing.assert_allclose(np.linalg.norm(zero, axis=1), 1.0, rtol=1e-5)


def test_the_example_of_the_documentation_runs():
    path = ROOT / "examples" / "my_defense.py"
    defense = parse(f"{path}:rounding")
    tree = {"a": jnp.array([[0.013, -0.027]])}
    out, _ = defenses.run(defense.update, jax.random.key(0), tree, ((),), 0)
    np.testing.assert_allclose(out["a"], [[0.01, -0.03]], atol=1e-7)
    assert defense.mechanisms == ()
    chained = parse(f"{path}:rounding + fed-cdp")
    assert len(chained.update) == 1 and len(chained.per_example) == 2
    with pytest.raises(InputError, match="did you mean 'rounding'"):
        parse(f"{path}:roundin")
    shown = (ROOT / "docs" / "defenses.md").read_text()
    assert path.read_text().split('"""\n', 2)[-1].strip() in shown


def test_a_broken_file_is_reported_in_words(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    with pytest.raises(InputError, match="can't be imported: ZeroDivisionError"):
        parse(f"{path}:mine")
    path.write_text("mine = 3\n")
    with pytest.raises(InputError, match="must be a Defense, a Transform"):
        parse(f"{path}:mine")


def test_documentation_lists_every_preset():
    text = (ROOT / "docs" / "defenses.md").read_text()
    for name in importlib.import_module("gradaudit.defenses").PRESETS:
        assert f"`{name}`" in text, name
