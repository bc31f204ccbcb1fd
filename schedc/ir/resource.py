"""What serves one thing at a time: a rank, a link, a trunk, or a rank's own lane for collectives.

One type for all who ask whether two things share a resource. A trunk may have any name, so a name alone tells nothing: the kind is
part of the value, and no two kinds are ever equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from schedc.ir.network import Link
    from schedc.ir.problem import DataParallel


class Resource(NamedTuple):
    """One resource; made by the functions below."""

    kind: Literal["rank", "link", "trunk", "collectives"]
    ranks: tuple[int, ...] = ()
    """The rank, or source and destination of the link; none for a trunk."""
    trunk: str = ""
    """The trunk's name."""

    @classmethod
    def of_rank(cls, rank: int) -> Resource:
        """The rank itself, which computes."""
        return cls("rank", (rank,))

    @classmethod
    def of_link(cls, link: Link) -> Resource:
        """What the link's transfers occupy: the trunk that it shares, or the link."""
        return cls("link", (link.source, link.destination)) if link.trunk is None else cls("trunk", (), link.trunk)

    @classmethod
    def of_collectives(cls, parallel: DataParallel | None, rank: int) -> Resource:
        """On what the rank's collectives queue: the trunk that they share with transfers, or a lane of their own."""
        return cls("collectives", (rank,)) if parallel is None or parallel.trunk is None else cls("trunk", (), parallel.trunk)

    @property
    def text(self) -> str:
        """For people: `rank 3`, `link from rank 0 to rank 1`, `trunk site0>site1`, `collectives of rank 3`."""
        if self.kind == "link":
            return f"link from rank {self.ranks[0]} to rank {self.ranks[1]}"
        return f"trunk {self.trunk}" if self.kind == "trunk" else f"{'collectives of ' * (self.kind != 'rank')}rank {self.ranks[0]}"

    @property
    def label(self) -> str:
        """The same in few characters, for pictures: a link is `link 0>1`."""
        return f"link {self.ranks[0]}>{self.ranks[1]}" if self.kind == "link" else self.text
