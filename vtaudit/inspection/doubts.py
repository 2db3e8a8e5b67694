"""What deserves a look before a run: ambiguous names, odd values, odd ends, odd files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vtaudit.inspection.footers import SchemaColumn
from vtaudit.inspection.proposal import Proposal
from vtaudit.inspection.streams import EndKind, Streams
from vtaudit.inspection.survey import Numbers, Sample
from vtaudit.presets.aliases import Ambiguity, find_names, load_stream_names

LEAST_EPISODES = 5
SHARE_AT_LIMIT = 0.1
LEAST_LIMIT = 10
ZERO_SHARE = 0.01
NAMED_FILES = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at.

    Attributes:
        kind: file, drift, unusable, ambiguous, behavior, padding, ends, streams or sample.
        text: what was found.
        advice: what to do about it, or an empty text.
    """

    kind: str
    text: str
    advice: str = ""


def doubt_files(
    unreadable: Mapping[str, str], copies: Mapping[str, str], schema: Sequence[SchemaColumn]
) -> Iterator[Finding]:
    """Yield the files that cannot be read, copies, and columns that differ between files."""
    for name, error in unreadable.items():
        advice = "a run goes on without it and exits 1, unless --allow-unreadable is given"
        yield Finding("file", f"{name} cannot be read: {error}", advice)
    for name, original in copies.items():
        text = f"{name} repeats the content of {original}"
        yield Finding("file", text, "all its rows will be duplicates; it is left out below")
    for column in schema:
        if len(column.types) > 1:
            told = [f"{kind.type} in {_name_files(kind.files)}" for kind in column.types]
            yield Finding("drift", f"{column.name} is {'; '.join(told)}")
        if column.lacking:
            yield Finding("drift", f"{column.name} is absent from {_name_files(column.lacking)}")


def _name_files(files: Sequence[str]) -> str:
    more = f" and {len(files) - NAMED_FILES:,} more" if len(files) > NAMED_FILES else ""
    return ", ".join(files[:NAMED_FILES]) + more


def doubt_names(
    proposals: Sequence[Proposal], unclear: Sequence[tuple[str, Ambiguity]]
) -> Iterator[Finding]:
    """Yield the ambiguous columns and those that cannot be what they are called."""
    for column, entry in unclear:
        yield Finding(
            "ambiguous",
            f"{column} may be {' or '.join(entry.about)}: {entry.why}",
            entry.choose.format(column=column),
        )
    for each in proposals:
        if each.status == "unusable":
            what = "name another column" if each.needed else "leave it out"
            value = "COLUMN" if each.needed else "lit(null)"
            fault = each.note.partition("; ")[0]
            yield Finding("unusable", fault, f"{what}: --map {each.canonical}={value}")


def doubt_behavior(
    text: str | None, numbers: Numbers | None, *, is_discrete: bool
) -> Iterator[Finding]:
    """Yield what speaks against the values of `text` as behavior log-probs."""
    if numbers is None or text is None:
        return
    guess = guess_transform(text, numbers, is_discrete=is_discrete)
    if numbers.least is None or numbers.greatest is None:
        yield Finding("behavior", f"{text} holds no finite value in {numbers.rows:,} rows")
        return
    low, high = numbers.least, numbers.greatest
    known = f"all {numbers.finite:,} finite values of {text}"
    some = f"of {numbers.rows:,} values of {text}"
    if low == high == 0:
        advice = "a placeholder of a log without log-probs? Find the recorded ones"
        yield Finding("behavior", f"{known} are 0, as if every action had been certain", advice)
    elif low == high and numbers.finite > 1:
        advice = "right only if every action was chosen with one and the same probability"
        yield Finding("behavior", f"{known} are {low:.6g}", advice)
    if guess is not None:
        what = "probabilities" if high <= 1 else "negated log-probs"
        span = f"{known} lie in [{low:.6g}, {high:.6g}]: {what}, no log-probs"
        yield Finding("behavior", span, f"--map behavior_log_prob={guess}")
    elif is_discrete and numbers.positive:
        advice = (
            "log-probs of discrete actions are at most 0, so these rows will be rejected; if the "
            "actions are continuous: --action-space continuous"
        )
        yield Finding(
            "behavior", f"{numbers.positive:,} {some} are above 0, up to {high:.6g}", advice
        )
    elif numbers.finite > numbers.zero >= ZERO_SHARE * numbers.rows > 0:
        advice = "certain actions, or missing log-probs stored as 0?"
        yield Finding("behavior", f"{numbers.zero:,} {some} are exactly 0", advice)
    bad = {"null": numbers.null, "NaN": numbers.nan, "infinite": numbers.infinite}
    told = ", ".join(f"{count:,} {name}" for name, count in bad.items() if count)
    if told:
        yield Finding("behavior", f"{told} {some}", "these rows will be rejected")


def guess_transform(text: str, numbers: Numbers, *, is_discrete: bool) -> str | None:
    """Return what makes a log-prob of a column that holds none, None where nothing is to do."""
    low, high = numbers.least, numbers.greatest
    if "(" in text or not is_discrete or low is None or high is None:
        return None
    if low < 0 or high == 0:
        return None
    return f"log({text})" if high <= 1 else f"neg({text})"


def doubt_ends(streams: Streams, proposals: Mapping[str, Proposal]) -> Iterator[Finding]:
    """Yield what the ends and lengths of episodes give away."""
    kinds = {end.kind: end for end in streams.ends}
    for kind in ("terminated", "unmarked"):
        if kind in kinds:
            yield from _time_limit(kinds[kind])
    if set(kinds) == {"open"}:
        text = f"no row of {kinds['open'].episodes:,} trajectories ends an episode"
        yield Finding(
            "ends", text, "were the end flags lost, or are these windows of long episodes?"
        )
    if "both" in kinds:
        text = f"{kinds['both'].episodes:,} episodes end terminated and truncated at once"
        yield Finding("ends", text, "terminated wins; --strict-flags rejects such rows")
    cut = sum(kinds[name].episodes for name in ("truncated",) if name in kinds)
    if cut and proposals["bootstrap_value"].expression is None:
        yield Finding(
            "ends",
            f"{cut:,} truncated episodes and no bootstrap_value",
            "a truncated row needs the value of the state after it: log it or give it in --scores",
        )


def _time_limit(end: EndKind) -> Iterator[Finding]:
    is_marked = end.kind == "terminated"
    name = "terminated episodes" if is_marked else "trajectories without an end flag"
    advice = "log truncated apart" if is_marked else "--end-of-trajectory truncated"
    if end.episodes < LEAST_EPISODES or end.longest < 2:
        return
    if end.shortest == end.longest:
        text = f"all {end.episodes:,} {name} end at length {end.longest:,}"
    elif end.longest >= LEAST_LIMIT and end.at_longest >= max(3, SHARE_AT_LIMIT * end.episodes):
        text = (
            f"{end.at_longest:,} of {end.episodes:,} {name} end at length {end.longest:,}, and "
            "none is longer"
        )
    else:
        return
    limit = "probably a time limit" + (" logged as termination" if is_marked else "")
    yield Finding("ends", f"{text}: {limit}", f"if so: {advice}")


def doubt_streams(streams: Streams, columns: Sequence[str], *, partial: bool) -> Iterator[Finding]:
    """Yield what the keys of rows give away; holes tell nothing where only a part was read."""
    if streams.keyless:
        yield Finding("streams", f"{streams.keyless:,} rows have no trajectory_id or no step")
    if streams.repeated:
        parts = find_names(load_stream_names(), columns)
        more = f"--map trajectory_id=key(...) with {', '.join(parts)}" if parts else "key(...)"
        yield Finding(
            "streams",
            f"{streams.repeated:,} rows repeat a (trajectory_id, step)",
            "retried deliveries are found as duplicates; ids that count up again in each actor or "
            f"file are made unique: {more}",
        )
    if streams.holes and not partial:
        yield Finding(
            "streams",
            f"{streams.holes:,} steps are missing inside {streams.with_holes:,} of "
            f"{streams.trajectories:,} trajectories",
            "lost rows become gaps; if the step counts something else, --step-from order",
        )


def doubt_sample(sample: Sample, actions_missing: int) -> Iterator[Finding]:
    """Yield that rows were left out, and rows without an action."""
    if sample.is_partial:
        yield Finding(
            "sample",
            f"{sample.rows + sample.padding:,} of {sample.rows_total:,} rows were looked at, in "
            f"{sample.files:,} of {sample.files_total:,} files: counts and lengths are of these, "
            "and episodes that reach into other files look open",
        )
    if actions_missing:
        yield Finding(
            "padding",
            f"{actions_missing:,} of {sample.rows + sample.padding:,} rows have no action",
            "if they are padding or final observations: --map valid=notnull(ACTION)",
        )
