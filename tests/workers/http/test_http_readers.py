"""The readers of a response, each by itself, and the retry policy, which is a pure function."""

from __future__ import annotations

import pytest

from plait.core.sampling import Sampling, StructuredOutput
from plait.workers.http import ServerError
from plait.workers.http.flow_control import (
    Fail,
    Fresh,
    Resuming,
    RetryContext,
    Send,
    SendAfter,
    Streaming,
    classify_error,
    next_request,
)
from plait.workers.http.logprob_trace import LogprobTrace
from plait.workers.http.response_parser import SurrogateJoiner, TextReader, ThoughtSplitter, TokenIdTrace, UsageMeter


def test_text_is_cut_at_a_stop_text_and_secrets_are_redacted_across_pieces() -> None:
    reader = TextReader(stops=("END",), secrets=("sk-secret",))
    assert [reader.feed(piece, False) for piece in ("a sk-", "secret b", " E", "ND c")] == ["a ", "*** b", " ", "END"]
    assert (reader.text, reader.found_stop, reader.is_redacted) == ("a *** b END", True, True)


def test_resumed_text_that_was_not_sent_comes_with_the_next_piece() -> None:
    reader = TextReader()
    reader.feed("one", False)
    reader.resume("one two")
    assert (reader.feed("", False), reader.feed(" three", True), reader.text) == ("", " two three", "one two three")


def test_halves_of_a_character_are_joined_and_a_lone_one_is_replaced() -> None:
    joiner = SurrogateJoiner()
    assert (joiner.feed("a\ud83d", False), joiner.feed("\ude00", False)) == ("a", "😀")
    assert joiner.feed("\ud83d", True) == "\ufffd"


def test_thoughts_are_split_from_a_block_whose_tag_comes_in_pieces() -> None:
    splitter, text = ThoughtSplitter(can_have_block=True), "<think>hm</think>yes"
    fed = [splitter.feed(piece, "", False) for piece in ("<thi", "nk>h", "m</think>", "yes")]
    assert fed == [False, True, True, False] and splitter.close(text, "stop") == ("hm", "yes")
    assert splitter.is_cut_in_thoughts("<think>hm", "length") and not splitter.is_cut_in_thoughts(text, "length")
    assert splitter.has_only_end("hm</think>yes") and not splitter.has_only_end(text)


def test_thoughts_in_a_field_of_their_own() -> None:
    splitter = ThoughtSplitter(can_have_block=True)
    assert splitter.feed("", "hm", False) and not splitter.feed("yes", "", True)
    assert splitter.has_field and splitter.close("yes", "stop") == ("hm", "yes")


def test_ids_count_only_if_they_are_exactly_those_of_the_text() -> None:
    trace = TokenIdTrace()
    trace.feed((), [1, 2])
    trace.feed([3], [9, 9])
    assert trace.is_complete(1) and not trace.is_complete(2)
    assert trace.close("a", is_unchanged=True) == ((1, 2), (3,))
    assert trace.close("a", is_unchanged=False) == ((), ())


def test_a_server_is_believed_within_bounds() -> None:
    meter = UsageMeter(max_tokens=10, thinking_room=5)
    meter.count(2, is_thought=True)
    meter.text_bytes = 8
    meter.feed({"prompt_tokens": True, "completion_tokens": 10**9}, is_last_chunk=True)
    assert meter.reported is not None and (meter.reported.prompt, meter.generated(has_ids=False)) == (0, 15)
    assert (meter.is_final, meter.tokens_left(False, False), meter.stream_thoughts) == (True, 10, 2)
    meter.restart()
    assert (meter.is_fresh, meter.generated(has_ids=False), meter.reported) == (True, 0, None)


def test_log_probabilities_are_required_once_they_are_asked_for() -> None:
    trace = LogprobTrace(Sampling(logprobs=1))
    assert trace.feed({"token_logprobs": [-1.0, None]}, "a", False) == [-1.0]
    assert trace.close((), is_processed=False)["logprob"] == -1.0
    with pytest.raises(ServerError, match="no log-probabilities"):
        LogprobTrace(Sampling(logprobs=1)).feed(None, "a", False)


CONTEXT = RetryContext(max_retries=2, backoff_s=1.0)
OVERLOAD = classify_error(ServerError("full", status=429, retryable=True), seconds=5.0)
BROKEN = ServerError("cut", retryable=True)


def test_a_rejected_request_is_retried_with_backoff_until_the_limit() -> None:
    assert next_request(Fresh(), OVERLOAD, CONTEXT) == SendAfter(1.0, Fresh(1))
    assert next_request(Fresh(1), OVERLOAD, CONTEXT) == SendAfter(2.0, Fresh(2))
    ended = next_request(Fresh(2), OVERLOAD, CONTEXT)
    assert isinstance(ended, Fail) and not ended.error.retryable, "the step does not repeat what was tried in vain"


def test_a_broken_response_is_resumed_once() -> None:
    assert next_request(Streaming(0, can_resume=True), BROKEN, CONTEXT) == SendAfter(1.0, Resuming(1))
    ended = next_request(Streaming(1, can_resume=False), BROKEN, CONTEXT)
    assert isinstance(ended, Fail) and ended.error.retryable, "the step's own retries decide"


def test_a_costly_failure_is_left_to_the_step() -> None:
    slow = classify_error(BROKEN, seconds=5.0)
    assert slow.costly and isinstance(next_request(Fresh(), slow, CONTEXT), Fail)
    quick = classify_error(BROKEN, seconds=0.1)
    assert isinstance(next_request(Fresh(), quick, CONTEXT), SendAfter)
    assert isinstance(next_request(Fresh(1), quick, CONTEXT), Fail), "a broken connection is tried once more"


def test_a_wait_longer_than_the_step_has_fails_it() -> None:
    error = OVERLOAD.changed(retry_after=30.0)
    ended = next_request(Fresh(), error, RetryContext(2, 1.0, seconds_left=10.0))
    assert isinstance(ended, Fail) and "asks to wait for 30 s, and the step has 10 s" in ended.error.message
    assert "asks to wait" not in error.message, "the error itself is not edited"
    assert isinstance(next_request(Fresh(), OVERLOAD, RetryContext(2, 1.0, seconds_left=0.5)), Fail)


def test_a_refused_feature_is_dropped_unless_it_is_required() -> None:
    refusal = ServerError("no grammar", status=400)
    assert next_request(Fresh(), refusal, RetryContext(2, 1.0, refused="form")) == Send(without="form")
    form = StructuredOutput(kind="regex", spec="a")
    ended = next_request(Fresh(), refusal, RetryContext(2, 1.0, required_form=form))
    assert isinstance(ended, Fail) and "the step asks for the form 'regex'" in ended.error.message
