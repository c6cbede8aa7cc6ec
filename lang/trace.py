"""What a program says, without an engine; and what a run did, as a drawing. Reads branches; runs nothing itself."""

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ramet.lang import ir
from ramet.lang.values import Slot, add_usage
from ramet.runtime.types import Usage

if TYPE_CHECKING:
    from ramet.lang.branch import Branch
    from ramet.lang.run import HasBranch


class Trace:
    """The nodes of a program, branch by branch. `print(trace)` shows it as a program."""

    def __init__(self, name: str, parameters: list[str], root: "Branch") -> None:
        self.name, self.parameters, self.root = name, parameters, root

    @property
    def nodes(self) -> list[ir.Node]:
        """What was said on the first branch, in order; `root.forks` has the branches below."""
        return self.root.nodes

    def __repr__(self) -> str:
        head = f"@function\ndef {self.name}({', '.join(['s', *self.parameters])}):"
        body = "\n".join(_lines(self.root, "s")) or "pass"
        return f"{head}\n{textwrap.indent(body, '    ')}"


def _lines(branch: "Branch", state: str) -> Iterator[str]:
    forks = iter(branch.forks)
    for node in branch.nodes:
        if isinstance(node, ir.Verb) and node.name == "fork":
            fork = next(forks)
            name = "forks" if state == "s" else f"{state}_forks"
            yield f"{name} = {state}.fork({len(fork.children)})"
            for index, child in enumerate(fork.children):
                yield from _lines(child, f"{name}[{index}]")
        elif isinstance(node, ir.Verb):
            yield f"{'forks' if node.name.startswith('join') else state}.{_verb(node)}"
        else:
            yield f"{state} += {node!r}"


def _verb(node: ir.Verb) -> str:
    return node.name if node.name.endswith(")") else repr(node)


def show_tree(of: "HasBranch | Branch") -> str:
    """The branches of a run as text: each turn with the tokens it computed, found cached and generated.

    of: a state (its branch and all below), or a branch.
    """
    branch: Branch = getattr(of, "branch", of)  # type: ignore[arg-type]
    usage = branch.usage
    title = branch.run.name if branch.parent is None else "branch"
    return "\n".join([f"{title}  {_total(usage)}", *_draw(branch, "")])


def _total(usage: Usage) -> str:
    prompt, cached = usage.prompt_tokens, usage.cached_tokens
    share = f" ({cached / prompt:.0%})" if prompt else ""
    computed = prompt - cached
    return (
        f"prompt {prompt:,} = computed {computed:,} + cached {cached:,}{share}, generated {usage.completion_tokens:,}"
    )


def _draw(branch: "Branch", indent: str) -> Iterator[str]:
    """Turns and forks of a branch, in the order they were said."""
    items: list[tuple[str, list[Branch]]] = []
    forks = list(branch.forks)
    for index in range(len(branch.turns) + 1):
        while forks and forks[0].after_turns == index:
            fork = forks.pop(0)
            items.append((f"fork {len(fork.children)}", fork.children))
        if index < len(branch.turns):
            items.append((_turn(branch.turns[index]), []))
    if branch.lane.error is not None:
        items.append((f"✗ {type(branch.lane.error).__name__}: {branch.lane.error}", []))
    for position, (text, children) in enumerate(items):
        last = position == len(items) - 1
        yield f"{indent}{'└─' if last else '├─'} {text}"
        yield from _draw_children(children, indent + ("   " if last else "│  "))


def _draw_children(children: "list[Branch]", indent: str) -> Iterator[str]:
    for number, child in enumerate(children):
        last = number == len(children) - 1
        yield f"{indent}{'└─' if last else '├─'} {number}  {_total(child.usage)}"
        yield from _draw(child, indent + ("   " if last else "│  "))


def _turn(slot: Slot) -> str:
    name = slot.name or "…"
    usage = slot.usage
    for sample in slot.samples:
        usage = add_usage(usage, sample.usage)
    kind = "◆" if slot.selection is not None else "●"
    computed = usage.prompt_tokens - usage.cached_tokens
    counts = f"computed {computed:,}, cached {usage.cached_tokens:,}, generated {usage.completion_tokens:,}"
    return f"{kind} {name}  {counts}{_shown(slot)}"


def _shown(slot: Slot) -> str:
    if not slot.text.done() or slot.text.exception() is not None:
        return ""
    text = " ".join(slot.text.result().split())
    return f"  {textwrap.shorten(text, 40, placeholder='…')!r}" if text else ""
