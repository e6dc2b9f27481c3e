"""audit.toml: its template is the default, and what can't be meant is refused."""

import re

import pytest

from gradaudit.audit.audit_gates import Gates
from gradaudit.audit.audit_plan import TEMPLATE, AuditPlan, read_plan
from gradaudit.errors import InputError


def test_the_template_is_the_default(tmp_path):
    (tmp_path / "audit.toml").write_text(TEMPLATE)
    plan, gates = read_plan(tmp_path / "audit.toml")
    assert plan == AuditPlan() and gates == Gates()
    # What is commented out is right, too.
    lines = TEMPLATE.splitlines()
    loose = [re.sub(r"^# (\w+ = )", r"\1", line) for line in lines]
    (tmp_path / "audit.toml").write_text("\n".join(loose))
    plan, gates = read_plan(tmp_path / "audit.toml")
    assert gates == Gates(0.05, 0.3, 0.2, 8.0, True)
    assert plan.setting is not None and plan.setting.examples == 500


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed = ", "TOML"),
        ("sede = 1", "did you mean 'seed'"),
        ("seed = 'x'", "a whole number"),
        ("seed = true", "a whole number"),
        ("[scop]\ntypes = [2]", "did you mean 'scope'"),
        ("[scope]\ntypes = 2", "a list of whole numbers"),
        ("[scope]\ntypes = [3]", "0, 1 or 2"),
        ("[scope]\ntypes = []", "at least one"),
        ("[scope]\ntypes = [2, 2]", "twice"),
        ("[attack]\nvictims = 0", "at least 1"),
        ("[attack]\nsuccess_rmse = nan", "success_rmse"),
        ("[gates]\nmax_asr = 2", "max_asr"),
        ("[gates]\nmax_asrr = 0.1", "did you mean 'max_asr'"),
        ("[gates]\nrequire_certificate = 1", "true or false"),
        ("[federation]\nclients = 0", "clients"),
        ("[federation]\nbatches = 'poison'", "did you mean 'poisson'"),
        ("[federation]\npartition = 'shard'", "shards"),
        ("title = '" + "x" * (1 << 20) + "'", "1 MiB"),
        ("a" + ".a" * 3000 + " = 1", "audit.toml"),
    ],
)
def test_a_file_that_can_not_be_meant_is_refused(text, words, tmp_path):
    (tmp_path / "audit.toml").write_text(text)
    with pytest.raises(InputError, match=re.escape(words)):
        read_plan(tmp_path / "audit.toml")
