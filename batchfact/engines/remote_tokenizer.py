"""A stand-in for the tokenizer of a model that runs on a server: its ids are characters, and can be read back exactly.

Text flows in and ids flow out, as with a real tokenizer, so that prompts are assembled as ever; `read` turns the ids
back into the chat messages that they came from. The server tokenises. Characters of the user's never become markers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from batchfact.records import Message

# Private-use characters other than those of the prompt loader.
TURN, ROLE_END, TURN_END = "\ue010", "\ue011", "\ue012"
MARKS = frozenset(map(ord, (TURN, ROLE_END, TURN_END)))
ESCAPED = 0x110000
"""Added to a marker's character in text of the user's: Unicode ends below."""
WORD = 2 * ESCAPED
"""Added to a label word, which is one id: its bytes read as a number, behind a 1 that keeps zeros in front."""
CHARS_A_TOKEN = 4


class Conversation(Struct, frozen=True):
    """Messages, and what the model's own turn already says; a plain prompt is all `open_turn`."""

    messages: tuple[Message, ...]
    open_turn: str


class RemoteTokenizer:
    """Stateless. `is_chat` False leaves out the chat markers: the server then continues plain text."""

    bos_id: int | None = None
    ids_a_token: int = CHARS_A_TOKEN

    def __init__(self, *, is_chat: bool) -> None:
        self.is_chat = is_chat

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids = list(map(ord, text))
        if special or MARKS.isdisjoint(ids):
            return ids
        return [each + ESCAPED if each in MARKS else each for each in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(_text_of(each) for each in ids if each not in MARKS)

    def render_chat(self, messages: Sequence[Message]) -> str | None:
        if not self.is_chat:
            return None
        turns = [f"{TURN}{message.role}{ROLE_END}{message.content}{TURN_END}" for message in messages]
        return "".join(turns) + f"{TURN}assistant{ROLE_END}"

    def spell(self, word: str) -> list[int]:
        """A label word as one id: the server's own tokens are not known here."""
        return [WORD + int.from_bytes(b"\1" + word.encode())]

    def read(self, ids: Sequence[int]) -> Conversation:
        """The messages that `ids` were rendered from; the last turn is open."""
        plain, *turns = _split(ids, ord(TURN))
        if not turns:
            return Conversation((), self.decode(plain))
        messages = []
        for turn in turns:
            role, content = _split(turn, ord(ROLE_END))
            messages.append(Message(self.decode(role), self.decode(content)))
        return Conversation(tuple(messages[:-1]), messages[-1].content)


def _text_of(number: int) -> str:
    if number >= WORD:
        word = number - WORD
        return word.to_bytes((word.bit_length() + 7) // 8)[1:].decode()
    return chr(number % ESCAPED)


def _split(ids: Iterable[int], at: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for each in ids:
        if each == at:
            parts.append([])
        else:
            parts[-1].append(each)
    return parts
