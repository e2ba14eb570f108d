"""The commands of this distribution; `plait.apps.command_table` describes the form."""

from __future__ import annotations

COMMANDS = {
    "Look": {
        "runs export": (
            ".rollouts.command",
            "export_runs",
            "Write runs that went well as data for supervised training.",
        ),
    },
    "Measure": {
        "simulate": (".simulate", "simulate", "Run a plan in virtual time and compare policies."),
        "simulate calibrate": (".calibrate", "calibrate", "Fit the simulator to a model on this machine."),
    },
    "Research": {
        "learn route": (".route.command", "route", "Fit which planner a request is worth, for `route-features`."),
        "learn effort": (".learn.command", "effort", "Calibrate planners that spend effort by numbers."),
        "learn numbers": (".learn.numbers", "numbers", "Find numbers of planners by replaying journals."),
        "learn prompts": (".learn.command", "prompts", "Change prompt texts by reflection on what failed."),
        "learn versions": (".learn.command", "versions", "Show, compare and undo versions of learned values."),
        "learn rollouts": (
            ".rollouts.command",
            "rollouts",
            "Write token-exact records of many runs for training.",
        ),
    },
}
FAMILIES = {"learn": "Learn from runs: strategies, routes, numbers, prompt texts; write rollouts for training."}
