"""What a tenant's plan may ask for."""

from __future__ import annotations

import pytest

from plait.core.errors import NotAllowed
from plait.core.rights import Rights


def test_who_may_not_call_tools_may_still_ask_a_person() -> None:
    Rights(tools=False).may_call("ask_a_person", "s")
    Rights(tools=True).may_call("shell", "s")
    with pytest.raises(NotAllowed, match="may not call tools"):
        Rights(tools=False).may_call("shell", "s")
