"""lm-evaluation-harness."""

from __future__ import annotations

from importlib.metadata import version

from expected import TEXTS, Text
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

VERSION = version("lm_eval")


def asked(model, *questions, **more):
    given = {"until": ["fine"], "max_gen_toks": 20, "do_sample": False, **more}
    rows = [Instance("generate_until", {}, (question, given), n) for n, question in enumerate(questions)]
    return model.generate_until(rows, disable_tqdm=True)


def check_chat(base, model):
    served = LocalChatCompletion(base_url=f"{base}/chat/completions", model=model, num_concurrent=4, max_retries=1,
                                 tokenizer_backend=None)  # fmt: skip
    from lm_eval.models.utils import configure_pad_token  # noqa: F401

    chats = [served.apply_chat_template([{"role": "user", "content": f"hello {n}"}]) for n in range(12)]
    assert [each.strip() for each in asked(served, *chats)] == [Text("All is")] * 12


def check_completions(base, model):
    served = LocalCompletionsAPI(base_url=f"{base}/completions", model=model, max_retries=1, tokenizer_backend=None)
    assert asked(served, "hello")[0].strip() == Text("All is")


CHOICES = ("Rome is the capital of", ("Italy", "Spain", "a b c", "the sea of rain"))


def check_loglikelihood(base, model):
    """As tasks with choices ask: the tokenizer is the server's, prompts are token ids, `echo` with `logprobs`."""
    served = LocalCompletionsAPI(base_url=f"{base}/completions", model=model, max_retries=1, max_length=2048)
    question, answers = CHOICES
    rows = [Instance("loglikelihood", {}, (question, f" {answer}"), n) for n, answer in enumerate(answers)]
    scores = served.loglikelihood(rows, disable_tqdm=True)
    assert len(scores) == len(answers) and all(isinstance(score, float) and score < 0 for score, _ in scores)
    TEXTS.append(str(scores))  # a real model's are the same through plait
