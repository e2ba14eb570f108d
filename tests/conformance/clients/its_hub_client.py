"""its_hub's own client."""

from __future__ import annotations

from importlib.metadata import version

from expected import FINE, Text
from its_hub.core.lms.openai_lm import OpenAICompatibleLanguageModel

VERSION = version("its_hub")


def of(base, model, **options):
    return OpenAICompatibleLanguageModel(endpoint=base, api_key="none", model_name=model, max_tries=1, **options)


def said(answer):
    return answer["content"] if isinstance(answer, dict) else answer


async def check_plain(base, model):
    assert said(await of(base, model).agenerate([{"role": "user", "content": "hello"}])) == FINE


async def check_several(base, model):
    talk = [{"role": "user", "content": "hello"}]
    assert [said(each) for each in await of(base, model).agenerate([talk, talk, talk])] == [FINE] * 3


async def check_stop_kept(base, model):
    talk = [{"role": "user", "content": "hello"}]
    whole = said(await of(base, model, temperature=0).agenerate(talk))
    stop = whole.split()[1]
    served = of(base, model, stop=stop, temperature=0, max_tokens=20)
    answer = await served.agenerate(talk, include_stop_str_in_output=True)
    assert said(answer) == whole.partition(stop)[0] + stop


async def check_continued_assistant(base, model):
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "SAY<and more>"}]
    assert said(await of(base, model).agenerate(talk)) == Text("and more")
