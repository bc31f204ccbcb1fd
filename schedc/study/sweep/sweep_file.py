"""The keys of a sweep file and their types; what they multiply to is in `schedc.study.sweep.jobs`."""

from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from schedc.io.conform import Counts, Durations, Section

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Gap: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
Work: TypeAlias = Annotated[float, Meta(ge=0)]


class CompileSection(Section, frozen=True, kw_only=True):
    """The options of `schedc compile`; a list stands for each of its values in turn."""

    method: Text | tuple[Text, ...] | None = None
    time_limit_ns: Durations | None = None
    gap: Gap | tuple[Gap, ...] | None = None
    seed: Seed | tuple[Seed, ...] | None = None
    workers: Counts | None = None
    deterministic_limit: Work | tuple[Work, ...] | None = None


class CaseSection(Section, frozen=True, kw_only=True):
    """A named set of settings."""

    name: Text
    set: Any = None


class SweepFile(Section, frozen=True, kw_only=True):
    """A sweep: jobs × cases × grid × options of compile."""

    job: Text | tuple[Text, ...]
    compile: CompileSection = CompileSection()
    set: Any = None
    cases: tuple[CaseSection, ...] = ()
    grid: Any = None
