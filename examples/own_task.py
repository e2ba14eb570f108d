"""A task of your own: the prompt for a request, the place of the answer, and its verification."""

from __future__ import annotations

from pydantic import Field, JsonValue, field_validator

from plait import Orchestrator, Task
from plait.core.errors import TaskError
from plait.core.task import Style
from plait.workers.scripted import Reply, Scripted


class Anagram(Task):
    """A word; the answer is another word with the same letters."""

    language: str = Field(default="English", min_length=1, description="Language of the answer.")

    @field_validator("text")
    @classmethod
    def _is_a_word(cls, text: str) -> str:
        if not text.strip().isalpha():
            raise TaskError(f"an anagram is made of one word, such as 'listen', not of {text!r}")
        return text.strip()

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the prompt."""
        return f"Write one {self.language} word with the letters of '{self.text}'. End with 'answer: WORD'."

    def chat(self) -> bool:
        """Return `True`: the prompt is a user's message, so the chat template applies."""
        return True

    def extract(self, text: str) -> JsonValue:
        """Return the word after the last "answer:", or `None`: a text without one has no vote."""
        _, found, rest = text.rpartition("answer:")
        words = rest.split()
        return words[0].strip(".'") if found and words else None

    def key(self, answer: JsonValue) -> str:
        """Return the word in small letters: votes for `Silent` and `silent` are counted together."""
        return str(answer).casefold()

    def verify(self, answer: JsonValue) -> bool:
        """Return whether it is another word of the same letters. Whether it is a word at all is not checked."""
        word, own = self.key(answer), self.text.casefold()
        return word != own and sorted(word) == sorted(own)


def main() -> None:
    texts = ["answer: listens", "Same letters: answer: Silent.", "answer: listens"]
    model = Scripted([Reply(text=text, times=1) for text in texts])
    with Orchestrator(workers=[model]) as plait:
        answer = plait.run("listen", task="own_task:Anagram", planner="sample:n=3", merge="best-of")
    print(answer.answer, answer.verified, answer.why)


if __name__ == "__main__":
    main()

# prints "Silent True verified; of 3 done, 1 right, 2 wrong"
