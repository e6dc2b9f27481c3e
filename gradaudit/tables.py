"""Results as tables for people."""

from typing import Any

from rich.table import Table


def attack_table(result: dict[str, Any]) -> Table:
    """Returns the table of one attack's result.json."""
    config, scores, oracle = result["config"], result["metrics"], result["oracle"]
    table = Table(
        title=(
            f"type {config['type']} · {config['method']} against {config['defense']} · "
            f"{config['dataset']} · {result['victims']} victims"
        ),
        title_justify="left",
        show_header=False,
    )
    asr, rmse, iterations = scores["asr"], scores["rmse"], scores["iterations"]
    table.add_row(
        "attack success rate",
        f"{asr['value']:.3f}  [{asr['low']:.3f}, {asr['high']:.3f}]",
        f"RMSE <= {asr['threshold']:g}; guessing: {asr['guess']:.3f}",
    )
    table.add_row("RMSE", number(rmse["median"]), f"mean {number(rmse['mean'])}")
    table.add_row(
        "PSNR, SSIM",
        f"{number(scores['psnr']['median'])} dB, {number(scores['ssim']['median'])}",
        "medians",
    )
    table.add_row(
        "iterations to success",
        number(iterations["median"]),
        f"median; cap {iterations['cap']}; run {number(iterations['run_median'])}",
    )
    table.add_row(
        "evaluations", number(scores["evaluations"]["median"]), "median per victim"
    )
    table.add_row("labels recovered", number(scores["label_accuracy"]), "")
    table.add_row(
        "oracle (not an attack)",
        f"ASR {oracle['asr']['value']:.3f}, RMSE {number(oracle['rmse']['median'])}",
        "best iterate by the truth",
    )
    timing = result["timing"]
    table.add_row(
        "time",
        f"{timing['total_s']:.1f} s",
        f"compile {timing['compile_s']:.1f} s; "
        f"{timing['victims_per_s']:.1f} victims/s after",
    )
    if result["accounting"] is not None:
        epsilon = result["accounting"]["epsilon"]
        verdict = result["accounting"]["guarantee"]["verdict"]
        table.add_row(
            "privacy of a training",
            f"claimed {_epsilon(epsilon['claimed'])}, "
            f"effective {_epsilon(epsilon['effective'])}",
            f"ε; guarantee {verdict}; see gradaudit account",
        )
    status = ", ".join(f"{count} {name}" for name, count in result["status"].items())
    table.add_row("status", status, "")
    return table


def _epsilon(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


def number(value: float | None) -> str:
    """Returns a short number; a dash where there is none."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.2e}" if abs(value) < 1e-2 else f"{value:.3g}"
