"""Limits of what a run may request, for every planner: models, tools, fields of requests to servers, hosts of images.

A server sets the rights of an external request and stores the rights with the run. They limit every plan and patch of
the run, whichever planner, merge or agent made it. `plait_server.outside` checks a request before that.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from .chat import ImagePart
from .errors import NotAllowed
from .ops import ModelCall, ToolCall
from .plan import Plan
from .values import Frozen

ANY_HOST = "*"
"""Entry of `Rights.image_hosts` for every host except, by name, this machine and its network."""
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")
_INSIDE = ("localhost", "local", "internal", "intranet", "lan", "home", "corp", "arpa", "onion")
"""Last labels of names that are no public host's."""
TEMPLATE_OWN = frozenset(
    (
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "max_length", "messages"),
        *("padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs"),
        *("tools", "truncation"),
    )
)
"""Arguments of the chat template's renderer, not of the template: they would change the rendered conversation."""


class Rights(Frozen):
    """The rights of a run. `None`: anything."""

    models: tuple[str, ...] | None = None
    """Names of models that its steps may name."""
    planners: tuple[str, ...] | None = None
    """Names of planners, including planners in options."""
    tools: bool = True
    """Whether the run's steps may call this process's tools, and its planners see these tools."""
    extra_body: tuple[str, ...] | None = None
    """Fields that `extra_body` may set."""
    image_hosts: tuple[str, ...] | None = None
    """Hosts that images may be fetched from, in addition to inline images (`data:`): by name, `*.example.org` for
    all below one, `*` for all but those of this machine and of private networks."""
    apart: bool = False
    """Use the request's salt and priority and ignore the plan's: several tenants share the server."""

    def hold(self, plan: Plan) -> None:
        """Raise `NotAllowed` for a step that asks for more."""
        for step in plan.steps:
            if isinstance(step.op, ToolCall):
                self.may_call(step.op.tool, step.name)
            elif isinstance(step.op, ModelCall):
                self.may_think(step.op, step.name)
            # Priorities of all tenants share one order.
            if self.apart and step.priority < 0:
                raise NotAllowed(f"step {step.name!r} has the priority {step.priority}: only 0 and more are for plans "
                                 "of tenants, as smaller ones go before the steps of others")  # fmt: skip

    def may_call(self, tool: str, step: str) -> None:
        """Raise `NotAllowed` for a tool that the run may not call. Questions to a person are always allowed."""
        if not self.tools and tool != "ask_a_person":
            raise NotAllowed(f"step {step!r} calls the tool {tool!r:.80}, and this tenant may not call tools")

    def may_think(self, op: ModelCall, step: str) -> None:
        """Raise `NotAllowed` for a model call that asks for more."""
        if op.model is not None:
            self.may_ask(op.model, f"step {step!r}")
        self.may_send(op.sampling.extra_body, f"step {step!r}")
        self.may_render(op.sampling.chat_template_kwargs, f"step {step!r}")
        if self.image_hosts is not None:
            for message in op.messages:
                for part in message.parts:
                    if isinstance(part, ImagePart):
                        self.may_fetch(part.image_url.url, f"step {step!r}")

    def may_ask(self, model: str, what: str) -> None:
        """Raise `NotAllowed` for a model."""
        if self.models is not None and model not in self.models:
            there = ", ".join(self.models) or "none"
            raise NotAllowed(f"{what} names the model {model!r:.80}; there are: {there}", "model")

    def may_plan(self, planner: str, what: str) -> None:
        """Raise `NotAllowed` for a planner."""
        if self.planners is not None and planner not in self.planners:
            there = ", ".join(self.planners) or "none"
            raise NotAllowed(
                f"{what} names the planner {planner!r:.80}, which is not to be used here; there are: {there}"
            )

    def may_send(self, fields: Mapping[str, object], what: str) -> None:
        """Raise `NotAllowed` for a field of `extra_body`."""
        if self.extra_body is None:
            return
        for name in fields:
            if name not in self.extra_body:
                there = ", ".join(self.extra_body) or "none"
                raise NotAllowed(f"{what} sets {name!r:.80} in `extra_body`; these may be set here: {there}")

    def may_render(self, fields: Mapping[str, object], what: str) -> None:
        """Raise `NotAllowed` for a key of `chat_template_kwargs` that is not a template variable, if the run has any
        limit."""
        # If all bodies may be sent and all images fetched, template arguments give no further access.
        if (self.extra_body is None and self.image_hosts is None) or not isinstance(fields, dict):
            return
        if taken := sorted(TEMPLATE_OWN.intersection(fields)):
            raise NotAllowed(
                f"{what} sets {', '.join(taken)} in `chat_template_kwargs`: that is no value for a template"
            )

    def may_fetch(self, url: str, what: str) -> None:
        """Raise `NotAllowed` for the address of an image."""
        if self.image_hosts is None or url.startswith("data:image/"):
            return
        host = host_of(url)
        if host is None or not any(_matches_host(host, pattern) for pattern in self.image_hosts):
            there = ", ".join(self.image_hosts) or "none"
            raise NotAllowed(
                f"{what} has an image at {url[:80]!r}: send it along (data:image/…), or from a host that is allowed "
                f"({there})"
            )


def host_of(url: str) -> str | None:
    """Return the host of a URL in normal form; `None` if two parsers might disagree on the host.

    >>> host_of("http://0x7f.1/x"), host_of("https://Example.org./a.png"), host_of("http://a@b/")
    ('127.0.0.1', 'example.org', None)
    """
    if any(char <= " " or char == "\\" or char > "~" for char in url) or "@" in url.split("/")[2]:
        return None
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return None
    # Some parsers decode an escape in a host; others keep it.
    if not host or "%" in host:
        return None
    host = host.removesuffix(".")
    # The last part of a host name is never a number, so a host that ends in a number is an IP address.
    if ":" in host or not _NUMBER.fullmatch(host.rpartition(".")[2]):
        return host
    return _address(host)


def _address(host: str) -> str | None:
    """Parse an IPv4 address in any notation that URL parsers accept: fewer parts, octal, hexadecimal."""
    parts = host.split(".")
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    try:
        numbers = [int(part, 8) if part[0] == "0" and part.isdigit() else int(part, 0) for part in parts]
        whole = numbers[-1]
        if whole >= 256 ** (5 - len(parts)) or any(number > 255 for number in numbers[:-1]):
            return None
        return str(ipaddress.IPv4Address(whole + sum(part << 8 * (3 - at) for at, part in enumerate(numbers[:-1]))))
    except ValueError:
        return None


def _matches_host(host: str, allowed: str) -> bool:
    if allowed == ANY_HOST:
        return _is_public(host)
    if allowed.startswith("*."):
        return host.endswith(allowed[1:].lower())
    return host == allowed.lower()


def _is_public(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # A name without a dot belongs to the local network.
        return "." in host and host.rpartition(".")[2] not in _INSIDE
    if isinstance(address, ipaddress.IPv6Address):
        # An IPv6 address may embed an IPv4 one (mapped, 6to4, Teredo, NAT64): accept only plain ones of 2000::/3.
        tunnelled = address.ipv4_mapped or address.sixtofour or address.teredo
        return address.is_global and not tunnelled and address in ipaddress.ip_network("2000::/3")
    return address.is_global and not address.is_multicast
