"""Each published method against what its authors' own functions returned: no difference that is not documented."""

from __future__ import annotations

import pytest

from tests.oracles.harness import FOLDER, Oracle, oracles

ORACLES = oracles()


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES.keys())
def test_ours_gives_what_the_authors_function_gave(oracle: Oracle) -> None:
    head, facts = oracle.facts()
    assert len(facts) == head["cases"] > 0
    wrong = [fact for fact in facts if not oracle.same(fact["out"], oracle.mine(fact["in"], fact["out"]))]
    assert len(wrong) == head["differ"], f"such as {wrong[:1]}"
    assert not wrong or oracle.differs, "a difference has a line that says what differs"


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES.keys())
def test_facts_say_whose_they_are_and_are_small(oracle: Oracle) -> None:
    head, _ = oracle.facts()
    said = (oracle.repository, oracle.commit, oracle.licence, oracle.function)
    assert (head["repository"], head["commit"], head["licence"], head["function"]) == said
    assert len(oracle.commit) == 40 and oracle.licence and oracle.file.stat().st_size < 200_000


def test_every_file_of_facts_has_its_oracle() -> None:
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == set(ORACLES)
