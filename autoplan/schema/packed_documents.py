"""Lengths of the documents that are packed into a sequence, each of which attends to itself alone."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from autoplan.schema.base import Frozen

#: Deviations above the mean that few lengths exceed.
_FEW_DEVIATIONS: Final = 3.0

Length = Annotated[int, Field(ge=1, le=100_000_000)]


class DocumentLengths(Frozen):
    """Mean and standard deviation of the documents' lengths."""

    mean: float = Field(ge=1, le=1e8, strict=False, description="mean length of a document, in tokens")
    deviation: float = Field(
        default=0.0, ge=0, le=1e8, strict=False, description="standard deviation of the lengths, in tokens"
    )

    def pieces(self, sequence_length: int) -> tuple[tuple[float, float], ...]:
        """Return one length that costs as the distribution, (E[n^2] / E[n], 1): a token's own document.

        >>> DocumentLengths(mean=600, deviation=300).pieces(8192)
        ((750.0, 1.0),)
        """
        mean_piece = self.mean + self.deviation**2 / self.mean
        return ((min(mean_piece, float(sequence_length)), 1.0),)


Documents = DocumentLengths | Annotated[tuple[Length, ...], Field(min_length=1, max_length=10_000)]


def document_pieces(documents: Documents, sequence_length: int) -> tuple[tuple[float, float], ...]:
    """Return the pieces of documents in sequences: their lengths, and the share of the tokens that each has.

    What is longer than a sequence is cut into whole ones and a rest.

    >>> document_pieces((1000, 3000), 2000)
    ((1000.0, 0.5), (2000.0, 0.5))
    """
    if isinstance(documents, DocumentLengths):
        return documents.pieces(sequence_length)
    tokens: dict[float, float] = {}
    for length in documents:
        whole, rest = divmod(length, sequence_length)
        for piece, count in ((sequence_length, whole), (rest, 1)):
            if piece and count:
                tokens[float(piece)] = tokens.get(float(piece), 0.0) + piece * count
    total = sum(tokens.values())
    return tuple((piece, held / total) for piece, held in sorted(tokens.items()))


def long_document(documents: Documents) -> float:
    """Return a length that no document is longer than, or of a distribution all but a few [1].

    >>> long_document((90, 2048)), long_document(DocumentLengths(mean=600, deviation=300))
    (2048.0, 1500.0)
    """
    if isinstance(documents, DocumentLengths):
        return documents.mean + _FEW_DEVIATIONS * documents.deviation
    return float(max(documents))
