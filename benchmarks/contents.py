"""All benchmarks by name, the cheap ones first."""

from gradaudit.benchmarks.accounting_tables import ACCOUNTING
from gradaudit.benchmarks.adversaries import ADVERSARIES
from gradaudit.benchmarks.attack_tables import ATTACKS, RESILIENCE
from gradaudit.benchmarks.budget_tables import DECAY, TARGET_ACCURACY
from gradaudit.benchmarks.clients_table import CLIENTS
from gradaudit.benchmarks.clipping_tables import (
    ADAPTIVE_CLIPPING,
    CLIPPING,
    NOISE_SCALE,
)
from gradaudit.benchmarks.cost_tables import COST, DPFL_COST
from gradaudit.benchmarks.dpfl_tables import (
    DPFL_ALLOCATION,
    DPFL_FEDERATED,
    DPFL_LAYERS,
)
from gradaudit.benchmarks.ldp_tables import LDP
from gradaudit.benchmarks.norm_figures import NORMS
from gradaudit.benchmarks.peers import PEERS
from gradaudit.benchmarks.speed_ratios import SPEED
from gradaudit.benchmarks.suite import Benchmark
from gradaudit.benchmarks.surface_tables import COMPRESSION, SURFACES
from gradaudit.errors import unknown_name

_IN_ORDER = (
    ACCOUNTING,
    DPFL_COST,
    DPFL_ALLOCATION,
    NORMS,
    COST,
    LDP,
    SPEED,
    CLIENTS,
    NOISE_SCALE,
    CLIPPING,
    TARGET_ACCURACY,
    DECAY,
    ADAPTIVE_CLIPPING,
    DPFL_FEDERATED,
    DPFL_LAYERS,
    SURFACES,
    COMPRESSION,
    ATTACKS,
    RESILIENCE,
    ADVERSARIES,
    PEERS,
)
BENCHMARKS: dict[str, Benchmark] = {each.name: each for each in _IN_ORDER}


def chosen(names: list[str]) -> list[Benchmark]:
    """Returns the benchmarks of these names, in their order; `all` is every one."""
    if names == ["all"]:
        return list(_IN_ORDER)
    for name in names:
        if name not in BENCHMARKS:
            raise unknown_name("benchmark", name, (*BENCHMARKS, "all"))
    return [each for each in _IN_ORDER if each.name in names]
