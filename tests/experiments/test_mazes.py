"""Study `mazes`: every search gets out, backtracking saves calls, and the one call with an effect is made once."""

from __future__ import annotations

from random import Random

from experiments.mazes.run import CONTENDERS, DOORS, Maze, solve


def test_a_maze_has_one_way_out_and_its_dead_ends_are_walls() -> None:
    for i in range(20):
        maze = Maze.drawn(3, Random(i))
        assert maze.look(maze.exit) == "the exit" and maze.exit.count(".") == 2
        way = [maze.exit[:at] for at in (1, 3)]
        assert all(maze.look(room) == "a room" for room in way)
        below = [f"{room}.{door}" for room in way for door in range(DOORS)]
        assert any(maze.look(room) == "a wall" for room in below)


def test_backtracking_saves_calls_and_no_side_effect_is_doubled() -> None:
    mazes = [Maze.drawn(3, Random(i)) for i in range(8)]
    walks = {name: [solve(maze, options, i) for i, maze in enumerate(mazes)] for name, options in CONTENDERS.items()}
    for name, each in walks.items():
        assert [walk.left for walk in each] == [[maze.exit] for maze in mazes], name
        if name.startswith("dfs"):
            assert all(walk.starts == 1 for walk in each), name
            assert all(len(walk.looks) == len(set(walk.looks)) for walk in each), "a room is looked at once"
    calls = {name: sum(walk.model for walk in each) for name, each in walks.items()}
    assert calls["dfs, 1 in flight"] < calls["ReAct, restarted"]
    for each in ("dfs, 2 in flight", "dfs, 4 in flight"):
        assert calls[each] <= 1.3 * calls["dfs, 1 in flight"], "siblings in flight are not the same"
    seconds = {name: sum(walk.seconds for walk in each) for name, each in walks.items()}
    assert seconds["dfs, 4 in flight"] < seconds["dfs, 1 in flight"]
