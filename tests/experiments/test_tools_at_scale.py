"""Study `tools-at-scale`: the tools that it makes, its model, and what it measures of both."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from experiments._tools.command import Given
from experiments.tools_at_scale import run as study
from experiments.tools_at_scale.catalog import Catalog
from experiments.tools_at_scale.run import plans, recall, run
from plait.apps.common.options import Common


def test_every_thing_has_one_maker_and_the_first_domains_do_not_depend_on_how_many_there_are() -> None:
    small, large = Catalog(tools=300), Catalog(tools=1000)
    assert len(small.specs) == len({each.name for each in small.specs}) == 300
    assert len({each.name for each in large.specs}) == 1000
    assert large.specs[:300] == small.specs
    assert small.requests(40, 1) == large.requests(40, 1)
    seen, unseen = ({each.target.place for each in small.requests(300, 1, seen)} for seen in (True, False))
    assert not seen & unseen
    for request in small.requests(40, 2):
        made = {each.kind for each in request.things}
        assert all(kind in made for each in request.things for kind in each.needs)
        assert request.things[-1] == request.target


def test_producers_find_what_the_question_does_not_name() -> None:
    found = {(each.k, each.producers): np.mean(each.shares) for each in recall([300], 60, 3)}
    assert found[5, True] > found[5, False] + 0.2
    assert found[25, True] >= found[12, True] >= found[5, True]


async def test_a_model_without_errors_plans_the_smallest_plan_and_repairs_mend_errors() -> None:
    perfect = await plans(300, 10, 1, errors=0.0, repairs=0)
    assert all(each.ran and each.f1 == 1.0 and each.depth == 1.0 and not each.mended for each in perfect)
    spoilt = await plans(300, 24, 1, errors=0.3, repairs=0)
    mended = await plans(300, 24, 1, errors=0.3, repairs=4)
    assert sum(each.ran for each in mended) > sum(each.ran for each in spoilt) + 3
    assert sum(each.mended for each in mended) > 0 == sum(each.mended for each in spoilt)


def test_the_page_is_made_of_the_rows(tmp_path: Path) -> None:
    given = Given(out=tmp_path, records=tmp_path, problems=6, common=Common(seed=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "ERRORS", (0.0, 0.2))
        patch.setattr(study, "REPAIRS", (0, 1))
        page = run(given, sizes=(300,))
    assert page.count("| 300 | 20% |") == 2
    assert run(dataclasses.replace(given, report=True)) == page == (tmp_path / "README.md").read_text()
