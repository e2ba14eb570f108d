from hypothesis import given, strategies as st

from plait.machine.backlog import Series


@given(st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(), max_size=4)), max_size=20))
def test_a_series_is_what_was_put_into_it_whoever_went_on_from_it(moves: list[tuple[int, list[int]]]) -> None:
    made: list[tuple[Series[int], list[int]]] = [(Series(), [])]
    for place, more in moves:
        series, known = made[place % len(made)]
        made.append((series.append_items(more), known + more))
    for series, known in made:
        assert (list(series), len(series)) == (known, len(known))
        assert series.with_more([-1]) == (*known, -1)
