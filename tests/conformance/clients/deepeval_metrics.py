"""DeepEval: a model as the judge of an answer."""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import version

os.environ |= {"DEEPEVAL_TELEMETRY_OPT_OUT": "YES", "DEEPEVAL_RESULTS_FOLDER": tempfile.mkdtemp()}

from deepeval.metrics import GEval
from deepeval.models import LocalModel
from deepeval.test_case import LLMTestCase, SingleTurnParams
from expected import FINE, REAL, is_rome
from pydantic import BaseModel

VERSION = version("deepeval")
os.chdir(tempfile.mkdtemp())  # where it keeps its cache


class City(BaseModel):
    name: str
    people: int


def of(base, model):
    return LocalModel(model=model, base_url=base, api_key="none", temperature=0)


def check_text(base, model):
    answer, cost = of(base, model).generate("hello")
    assert answer == FINE and not cost


async def check_asynchronous(base, model):
    assert (await of(base, model).a_generate("hello"))[0] == FINE


def check_schema(base, model):
    answer, _ = of(base, model).generate('Only JSON. SAY<{"name": "Rome", "people": 3}>', schema=City)
    assert is_rome(answer)


def check_metric(base, model):
    metric = GEval(
        name="right",
        evaluation_steps=['SAY<{"score": 8, "reason": "fine"}>'],
        evaluation_params=[SingleTurnParams.INPUT, SingleTurnParams.ACTUAL_OUTPUT],
        model=of(base, model),
        async_mode=False,
    )
    metric.measure(LLMTestCase(input="hello", actual_output="hello"), _show_indicator=False)
    assert metric.score == 0.8 or REAL
