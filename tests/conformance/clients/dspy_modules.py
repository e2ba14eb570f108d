"""DSPy."""

from __future__ import annotations

from importlib.metadata import version

import dspy
from expected import FINE, THREE, Text, called

VERSION = version("dspy")


def of(base, model, **options):
    return dspy.LM(f"openai/{model}", api_base=base, api_key="none", cache=False, num_retries=0, **options)


def check_lm(base, model):
    assert of(base, model)("hello") == [FINE]


def check_n(base, model):
    texts = of(base, model, n=3, temperature=0.9)("hello")
    assert len(texts) == 3 and all(map(FINE.drawn, texts))


def check_predict(base, model):
    with dspy.context(lm=of(base, model)):
        assert dspy.Predict("question -> answer")(question="hello").answer == Text("fine")


def check_json_adapter(base, model):
    with dspy.context(lm=of(base, model), adapter=dspy.JSONAdapter()):
        ask = dspy.Predict("question -> answer: str, people: int")
        assert ask(question='SAY<{"answer": "fine", "people": 3}>').people == THREE


def check_tools(base, model):
    def weather(city: str) -> str:
        """Tell the weather."""
        return "sun"

    tools = [dspy.Tool(weather).format_as_litellm_function_call()]
    said = of(base, model)(messages=[{"role": "user", "content": "the weather?"}], tools=tools)
    assert called(isinstance(said[0], dict) and said[0].get("tool_calls"))[0].function.name == "weather"


def check_text_model(base, model):
    assert of(base, model, model_type="text")("hello")[0].strip() == FINE


def check_responses_model(base, model):
    said = of(base, model, model_type="responses")("hello")
    assert FINE.within(str(said[0]["text"] if isinstance(said[0], dict) else said[0]))
