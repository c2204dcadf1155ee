"""Text from a store on its way to a terminal. Nothing here touches the network."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with what is no printable character escaped: a value must not move the cursor, nor forge a line."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
