"""Files attached to a question: texts precede the question, images become parts of its message."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.chat import ImagePart, ImageUrl, Message, TextPart
from ...core.errors import UsageError
from ...core.messages import pluralise

LONGEST = 400_000
"""Bytes of a text."""
LARGEST = 10_000_000
"""Bytes of an image."""
_IMAGES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".gif": "gif", ".webp": "webp"}


@dataclass(frozen=True, slots=True)
class Attachment:
    """One file."""

    name: str
    text: str = ""
    image: str = ""
    """As a `data:` address."""
    size: int = 0
    """Bytes."""

    @property
    def about(self) -> str:
        """A short description."""
        what = pluralise(self.size, "byte")
        return f"{self.name} ({'an image' if self.image else 'text'}, {what})"


def attachment(path: Path) -> Attachment:
    """Read a file. Raises `UsageError` for a file that is unreadable, too large, or neither text nor image."""
    kind = _IMAGES.get(path.suffix.lower())
    most = LARGEST if kind else LONGEST
    try:
        if not path.is_file():
            raise UsageError(f"{path} is no file that could be attached")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
    if len(data) > most:
        raise UsageError(f"{path} is too large to be attached: {most:,} bytes at most, cut it or take a part")
    if kind:
        return Attachment(
            path.name, image=f"data:image/{kind};base64,{base64.b64encode(data).decode()}", size=len(data)
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{path} is no text in UTF-8 and no image ({', '.join(_IMAGES)}): give its text as a file")
    return Attachment(path.name, text=text, size=len(data))


def message_of(question: str, attached: Sequence[Attachment]) -> Message | None:
    """Return a question with its attachments; `None` without attachments."""
    if not attached:
        return None
    texts = [f"File {attachment.name}:\n{fence(attachment.text)}" for attachment in attached if not attachment.image]
    text = "\n\n".join([*texts, question])
    images = [ImagePart(image_url=ImageUrl(url=attachment.image)) for attachment in attached if attachment.image]
    return Message(role="user", content=(*images, TextPart(text=text)) if images else text)


def fence(text: str) -> str:
    """Return a text as a code block of Markdown."""
    sign = "```"
    while sign in text:
        sign += "`"
    return f"{sign}\n{text.rstrip()}\n{sign}"
