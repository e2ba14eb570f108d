"""A method that is broken fails its oracle: every break is red, and every method with an oracle has three."""

from __future__ import annotations

from collections import Counter

import pytest

from plait.apps.commands.plugins import fidelities
from plait.runtime.plugins.loader import Plugins
from tests.oracles.harness import oracles
from tests.oracles.mutate import BREAKS, DATA, Break, broken, reds, sees
from tests.oracles.test_fidelity import KINDS


@pytest.mark.parametrize("each", BREAKS, ids=lambda each: f"{each.method}: {each.old.strip()[:40]}")
def test_a_broken_method_fails_its_oracle(each: Break) -> None:
    assert reds(each), f"{each.old!r} → {each.new!r}: {', '.join(each.oracles)} stay green"


def test_a_method_with_an_oracle_has_three_breaks() -> None:
    breaks = Counter(each.method.partition(" (")[0] for each in BREAKS)
    assert {name for each in BREAKS for name in each.oracles} == oracles().keys() - DATA
    plugins = Plugins()
    held = {row["name"] for kind in KINDS for row in fidelities(plugins, kind) if set(row["oracles"]) - DATA}
    assert held <= breaks.keys() and min(breaks.values()) >= 3


def test_a_break_is_undone() -> None:
    each = next(each for each in BREAKS if each.method == "esc")
    (name,) = reds(each)
    assert not sees(oracles()[name])


def test_a_break_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError, match="0 times"), broken("plait.policies.stop.votes", "no such code", ""):
        pass
