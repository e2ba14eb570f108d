"""Plugins by name: what is found, what the options become, and what is said of a name or option that does not fit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.addresses import allow
from plait.core.errors import ConfigError, PluginError, TaskError
from plait.core.interfaces import Merge, Planner, Policy, Worker
from plait.core.ops import Plugin
from plait.core.task import Task
from plait.core.tools.tool import tool
from plait.runtime.plugins import loader as module
from plait.runtime.plugins.loader import Plugins
from plait.runtime.plugins.spec import typed


@pytest.fixture
def plugins() -> Plugins:
    return Plugins()


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for third parties' modules; those imported from it are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("their"):
            del sys.modules[name]


@pytest.fixture
def ours(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of merges to put files into, in place of `plait.policies.merge`."""
    package = theirs / "their_merges"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setitem(module.PACKAGES, "merge", ("their_merges",))
    return package


HEAD = """
from __future__ import annotations
from plait.core.interfaces import Merge, Planner, Policy, Task, Verdict, Worker
from pydantic import field_validator
"""


# --- what is there ---


def test_each_kind_is_found_by_file_name(plugins: Plugins) -> None:
    assert isinstance(plugins.planner(Plugin(name="single")), Planner)
    assert isinstance(plugins.policy(Plugin(name="critical-path")), Policy)
    assert isinstance(plugins.policy(Plugin(name="consensus")), Policy)
    assert isinstance(plugins.merge(Plugin(name="best_of")), Merge)
    assert isinstance(plugins.task(Plugin(name="countdown"), "3 5 7 11 -> 24"), Task)
    assert isinstance(plugins.worker("scripted", replies=[]), Worker)


def test_dashes_and_underscores_are_one_name(plugins: Plugins) -> None:
    assert plugins.class_of("policy", "critical-path") is plugins.class_of("policy", "critical_path")


@pytest.mark.parametrize("kind", ["planner", "policy", "merge", "task", "worker"])
def test_every_plugin_in_the_tree_can_be_loaded_and_says_what_it_is(plugins: Plugins, kind: Any) -> None:
    listed = plugins.names(kind)
    assert list(listed) == sorted(listed)
    for name, line in listed.items():
        assert line and "\n" not in line and "cannot be loaded" not in line, name
        assert "_" not in name
    some = {"planner": "sample", "policy": "fifo", "merge": "majority", "task": "plain", "worker": "tools"}
    assert some[kind] in listed


def test_names_lists_a_broken_plugin_with_its_reason(
    plugins: Plugins, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.runtime.plugins.loader.installed", lambda kind: {})  # merges of plait-research
    (ours / "broken.py").write_text("1 / 0")
    (ours / "_private.py").write_text("1 / 0")
    (ours / "good_one.py").write_text(
        HEAD + "__all__ = ['A']\nclass A(Merge):\n    '''First.\n\n    Second.\n    '''\n"
    )
    listed = plugins.names("merge")
    assert list(listed) == ["broken", "good-one"]
    assert "ZeroDivisionError" in listed["broken"] and listed["good-one"] == "First."


def test_options_become_fields_and_equal_specs_one_object(plugins: Plugins) -> None:
    one = plugins.planner(Plugin(name="sample", options={"n": 3, "answer": {"temperature": 0.5}}))
    assert (one.n, one.answer.temperature) == (3, 0.5)  # type: ignore[attr-defined]
    assert plugins.planner(Plugin(name="sample", options={"answer": {"temperature": 0.5}, "n": 3})) is one
    assert plugins.planner(Plugin(name="sample", options={"n": 4, "answer": {"temperature": 0.5}})) is not one
    assert plugins.planner(Plugin(name="sample")) is plugins.planner(Plugin(name="sample"))


def test_a_third_partys_plugin(plugins: Plugins, theirs: Path) -> None:
    (theirs / "their_pkg").mkdir()
    (theirs / "their_pkg" / "__init__.py").write_text("")
    (theirs / "their_pkg" / "mod.py").write_text(HEAD + "class Theirs(Merge):\n    k: int = 1\n")
    with pytest.raises(PluginError, match=r"only the caller may allow: add --allow their_pkg\.mod:Theirs"):
        plugins.merge(Plugin(name="their_pkg.mod:Theirs"))
    assert "their_pkg" not in sys.modules
    allow("their_pkg.mod:Theirs")
    made = plugins.merge(Plugin(name="their_pkg.mod:Theirs", options={"k": 5}))
    assert isinstance(made, Merge) and made.k == 5  # type: ignore[attr-defined]


# --- names that do not fit ---


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("merge", "majorty", ["no merge 'majorty'", "did you mean 'majority'", "plait plugins"]),
        ("policy", "critical-pat", ["did you mean 'critical-path'", "plait plugins"]),
        ("policy", "majority", ["no policy 'majority'", "is a merge"]),
        ("planner", "by_complexity", ["any more", "write route-features"]),
        ("planner", "zzz", ["no planner 'zzz'", "there are: ", "single"]),
        ("planner", "", ["no planner ''"]),
        ("planner", "../planners/single", ["no planner"]),
        ("planner", "_seeds", ["no planner"]),
        ("planner", "dialects", ["no planner"]),
        ("merge", "plait.policies.merge.majority", ["no merge", "pkg.mod:Class"]),
        ("merge", "no_such_pkg.mod:Class", ["no module 'no_such_pkg'", "install it"]),
        ("merge", "plait.core.nope:Class", ["no module 'plait.core.nope'"]),
        ("merge", "plait.core.interfaces:Merg", ["no 'Merg'", "did you mean 'Merge'"]),
        ("merge", "plait.core.interfaces:Merge", ["is not a merge", "subclass of plait.core.Merge"]),
        ("merge", "plait.core.interfaces:Policy", ["is not a merge"]),
        ("merge", "json:dumps", ["is not a merge"]),
        ("worker", "json:JSONDecoder", ["is not a worker"]),
        ("merge", "json:", ["no merge 'json:'", "pkg.mod:Class"]),
        ("merge", ":Class", ["no merge ':Class'", "pkg.mod:Class"]),
    ],
)
def test_names_that_mean_no_plugin(plugins: Plugins, kind: Any, name: str, said: list[str]) -> None:
    if ":" in name:
        allow(name)
    with pytest.raises(PluginError) as caught:
        plugins.class_of(kind, name)
    message = str(caught.value)
    assert "\n" not in message
    for piece in said:
        assert piece in message


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", ["cannot be loaded", "ZeroDivisionError: division by zero"]),
        ("import sys; sys.exit(1)", ["cannot be loaded", "SystemExit"]),
        ("def (", ["cannot be loaded", "SyntaxError"]),
        ("import their_missing_library", ["needs 'their_missing_library'", "install it"]),
        ("class A(Merge): pass", ["no __all__"]),
        ("__all__ = []\nclass A(Merge): pass", ["exactly one merge", "none"]),
        ("__all__ = ['A', 'B']\nclass A(Merge): pass\nclass B(Merge): pass", ["exactly one merge", "A, B"]),
        ("__all__ = ['Merge']", ["exactly one merge", "none"]),
        ("__all__ = ['Gone']", ["exactly one merge", "none"]),
        ("__all__ = ['A']\nclass A(Policy): pass", ["exactly one merge", "none"]),
    ],
)
def test_files_that_hold_no_plugin(plugins: Plugins, ours: Path, code: str, said: list[str]) -> None:
    (ours / "odd.py").write_text(HEAD + code)
    with pytest.raises(PluginError) as caught:
        plugins.merge(Plugin(name="odd"))
    message = str(caught.value)
    assert message.startswith("merge 'odd'") and "\n" not in message
    for piece in said:
        assert piece in message


def test_a_file_may_export_more_than_its_plugin(plugins: Plugins, ours: Path) -> None:
    code = "__all__ = ['A', 'helper', 'A']\nclass Base(Merge): pass\nclass A(Base): pass\ndef helper(): ...\n"
    (ours / "more.py").write_text(HEAD + code)
    assert type(plugins.merge(Plugin(name="more"))).__name__ == "A"


# --- options that do not fit ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"m": 8}, ["no option 'm'", "it takes answer, n"]),
        ({"wdth": 1}, ["no option 'wdth'", "did you mean 'width'"]),
        ({"temperature": 1}, ["no option 'temperature'", "it is one of a call: answer.temperature"]),
        ({"answer": {"max_tokns": 1}}, ["no option 'answer.max_tokns'", "did you mean 'max_tokens'"]),
        ({"answer": {"max_tokens": 0}}, ["option 'answer.max_tokens' should be greater than or equal to 1"]),
        ({"answer": {"template": "{what}"}}, ["answer.template names {what}", "there are: question"]),
        ({"n": "many"}, ["option 'n' should be a valid integer", "'many'"]),
        ({"n": 0}, ["option 'n' should be greater than 0", "0"]),
        ({"n": None}, ["option 'n'"]),
        ({"n": 0, "x": 1}, ["option 'n'", "no option 'x'"]),
    ],
)
def test_options_that_do_not_fit(plugins: Plugins, options: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(PluginError) as caught:
        plugins.planner(Plugin(name="sample", options=options))
    message = str(caught.value)
    assert message.startswith("planner 'sample': ") and "\n" not in message
    for piece in said:
        assert piece in message


def test_a_plugin_that_needs_an_option_or_checks_them_together(plugins: Plugins, ours: Path) -> None:
    (ours / "needy.py").write_text(
        HEAD
        + """
from pydantic import model_validator
__all__ = ['Needy']
class Needy(Merge):
    a: int
    b: int = 0
    @model_validator(mode='after')
    def _check(self):
        if self.a == 7: raise RuntimeError('seven')
        if self.b > self.a: raise ValueError('b is more than a')
        return self
"""
    )
    with pytest.raises(PluginError, match=r"option 'a' is missing \(it takes a, b\)"):
        plugins.merge(Plugin(name="needy"))
    with pytest.raises(PluginError, match="its options: b is more than a"):
        plugins.merge(Plugin(name="needy", options={"a": 1, "b": 2}))
    with pytest.raises(PluginError, match="cannot be made: RuntimeError: seven"):
        plugins.merge(Plugin(name="needy", options={"a": 7}))


# --- tasks and workers ---


def test_tasks_are_bound_to_a_text(plugins: Plugins) -> None:
    assert plugins.task(Plugin(name="plain"), "hello").text == "hello"
    with pytest.raises(TaskError):
        plugins.task(Plugin(name="countdown"), "not a puzzle")
    with pytest.raises(PluginError, match="no option 'x'"):
        plugins.task(Plugin(name="plain", options={"x": 1}), "hello")
    with pytest.raises(PluginError, match="not an option"):
        plugins.task(Plugin(name="plain", options={"text": "b"}), "hello")


def test_a_task_that_refuses_its_text_as_pydantic_does(plugins: Plugins, theirs: Path) -> None:
    (theirs / "their_task.py").write_text(
        HEAD
        + """
class Short(Task):
    most: int = 3
    @field_validator('text')
    @classmethod
    def _short(cls, text):
        if len(text) > 3: raise ValueError('at most three letters, like abc')
        return text
"""
    )
    allow("their_task:Short")
    spec = Plugin(name="their_task:Short")
    assert plugins.task(spec, "abc").text == "abc"
    with pytest.raises(TaskError, match="the request: at most three letters, like abc"):
        plugins.task(spec, "abcd")
    with pytest.raises(PluginError, match="option 'most'"):
        plugins.task(Plugin(name="their_task:Short", options={"most": "x"}), "abc")


def test_workers_are_made_anew_with_their_constructors_types(plugins: Plugins, tmp_path: Path) -> None:
    one = plugins.worker("scripted", replies=[{"text": "hi"}], slots="3")
    assert one is not plugins.worker("scripted", replies=[])
    assert one.slots == 3 and one.script.replies[0].text == "hi"  # type: ignore[attr-defined]
    assert plugins.worker_class("scripted") is type(one)
    with pytest.raises(ConfigError, match="cannot be read"):
        plugins.worker("scripted", script=tmp_path / "none.json")


def test_worker_options_that_are_objects(plugins: Plugins) -> None:
    made = plugins.worker("tools", tools=[tool(name="a")(lambda: 1), pow_], slots=2)
    assert [spec.name for spec in made.specs] == ["a", "pow_"]  # type: ignore[attr-defined]


def pow_(base: int, exponent: int = 2) -> int:
    return base**exponent


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slot": 3}, ["no option 'slot'", "did you mean 'slots'", "it takes replies, script, slots, name"]),
        ({"slots": "many"}, ["option 'slots' should be a valid integer", "'many'"]),
        ({"replies": [{"times": 0}]}, ["option 'replies", "times", "greater than or equal to 1"]),
    ],
)
def test_worker_options_that_do_not_fit(plugins: Plugins, options: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(PluginError) as caught:
        plugins.worker("scripted", **options)
    message = str(caught.value)
    assert message.startswith("worker 'scripted': ") and "\n" not in message
    for piece in said:
        assert piece in message


def test_a_third_partys_worker(plugins: Plugins, theirs: Path) -> None:
    allow("their_worker:Open")
    (theirs / "their_worker.py").write_text(
        HEAD
        + """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from nowhere import Thing
class Open:
    name, slots, serves = 'open', 1, ('call',)
    def __init__(self, thing: Thing = None, **rest):
        if thing == 'bad': raise OSError('disk')
        self.thing, self.rest = thing, rest
    async def start(self): ...
    def run(self, job): ...
    async def cancel(self, attempt): ...
    def health(self): ...
    async def close(self): ...
"""
    )
    made = plugins.worker("their_worker:Open", thing=1, extra=2)
    assert (made.thing, made.rest) == (1, {"extra": 2})  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="cannot be made: OSError: disk"):
        plugins.worker("their_worker:Open", thing="bad")


# --- as written on a command line ---


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("sample", "sample", {}),
        (" critical-path ", "critical-path", {}),
        ("sample:n=8,answer.temperature=0.7", "sample", {"n": 8, "answer": {"temperature": 0.7}}),
        ("sample: n = 8 , style = direct", "sample", {"n": 8, "style": "direct"}),
        ("sample:answer.max-tokens=5", "sample", {"answer": {"max_tokens": 5}}),
        ('x:a={"b":1},a.c=2,a.d.e=3', "x", {"a": {"b": 1, "c": 2, "d": {"e": 3}}}),
        ('x:a=true,b=null,c="1",d=1.5x,e=', "x", {"a": True, "b": None, "c": "1", "d": "1.5x", "e": ""}),
        ('x:stop=["a,b","c"],o={"k":[1,2]},z=1', "x", {"stop": ["a,b", "c"], "o": {"k": [1, 2]}, "z": 1}),
        ("x:path=a/b:c,q=NaN", "x", {"path": "a/b:c", "q": "NaN"}),
        ("x:e=a=b", "x", {"e": "a=b"}),
        ("pkg.mod:Class", "pkg.mod:Class", {}),
        ("pkg.mod:Class:n=8,u=a:b", "pkg.mod:Class", {"n": 8, "u": "a:b"}),
        ("sample:", "sample", {}),
    ],
)
def test_parse_plugin(text: str, name: str, options: dict[str, Any]) -> None:
    assert Plugin.of(text) == Plugin(name=name, options=options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no plugin"),
        (":n=8", "names no plugin"),
        (":Class", "names no plugin"),
        ("sample:n=8,n=9", "'n' is given twice"),
        ("sample:n=8,temperature", "'temperature' is not an option"),
        ("sample:=8", "'' is not an option"),
        ("sample:answer.=8", "'answer.' is not an option"),
        ("sample:answer.top_p=1,answer.top_p=0.5", "'answer.top_p' is given twice"),
        ("sample:answer=1,answer.top_p=0.5", "'answer' is given whole and in parts"),
        ("sample:answer.template=@/etc/passwd", "is read only where a person types it"),
        ("sample:a b=8", "'a b' is not an option"),
        ("pkg.mod:Class:n", "'n' is not an option"),
    ],
)
def test_parse_plugin_refuses(text: str, said: str) -> None:
    with pytest.raises(PluginError) as caught:
        Plugin.of(text)
    assert said in str(caught.value) and repr(text) in str(caught.value)


def test_a_template_is_read_from_a_file_where_a_person_typed_it(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text('Say, "yes" or no: {question}\n')
    text = f"single:answer.template=@{tmp_path}/own.txt,style=direct"
    given = Plugin(name="single", options={"answer": {"template": 'Say, "yes" or no: {question}\n'}, "style": "direct"})
    assert Plugin.of(typed(text)) == given
    assert Plugin.of('single:answer.template="@own.txt"').options == {"answer": {"template": "@own.txt"}}
    with pytest.raises(PluginError, match=r"gone\.txt cannot be read"):
        typed(f"single:answer.template=@{tmp_path}/gone.txt")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex(r"\A[a-z_][a-z0-9_]{0,8}\Z"), _json, max_size=4), st.booleans())
def test_parse_plugin_reads_back_any_json(options: dict[str, Any], third_party: bool) -> None:
    name = "their_pkg.mod:Class" if third_party else "best-of"
    text = name + ":" + ",".join(f"{key}={json.dumps(value)}" for key, value in options.items())
    assert Plugin.of(text) == Plugin(name=name, options=options)
