"""What driver and workers send each other, as msgpack: a document once for all its pairs, outcomes as journals do."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from batchfact.records import DocumentGroup, Outcome, Pair


class _Summary(Struct, frozen=True, array_like=True):
    row: int
    text_hash: int
    summary: str


class _Group(Struct, frozen=True, array_like=True):
    number: int
    document_hash: int
    document: str
    summaries: tuple[_Summary, ...]


class Delivery(Struct, frozen=True, array_like=True):
    """Outcomes of one lease, each sent once."""

    lease: int
    outcomes: tuple[Outcome, ...]


class Look(Struct, frozen=True, array_like=True):
    """What a worker tells when it is asked how it does; the counts are those since it started."""

    deliveries: tuple[Delivery, ...]
    num_in_flight: int
    num_restarts: int
    num_given_up: int
    warnings: tuple[str, ...]
    """Those that it has not told yet."""


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE_GROUPS = msgspec.msgpack.Decoder(tuple[_Group, ...]).decode
_DECODE_DELIVERY = msgspec.msgpack.Decoder(Delivery).decode
_DECODE_LOOK = msgspec.msgpack.Decoder(Look).decode


def encode_groups(groups: Iterable[DocumentGroup]) -> bytes:
    return _ENCODE(
        [
            _Group(
                group.number,
                group.pairs[0].document_hash,
                group.document,
                tuple(_Summary(pair.row, pair.text_hash, pair.summary) for pair in group.pairs),
            )
            for group in groups
        ]
    )


def decode_groups(payload: bytes) -> list[DocumentGroup]:
    return [
        DocumentGroup(
            number=group.number,
            pairs=tuple(
                Pair(
                    row=each.row,
                    document=group.document,
                    summary=each.summary,
                    document_hash=group.document_hash,
                    text_hash=each.text_hash,
                )
                for each in group.summaries
            ),
        )
        for group in _DECODE_GROUPS(payload)
    ]


def encode(message: Delivery | Look) -> bytes:
    return _ENCODE(message)


def decode_delivery(payload: bytes) -> Delivery:
    return _DECODE_DELIVERY(payload)


def decode_look(payload: bytes) -> Look:
    return _DECODE_LOOK(payload)
