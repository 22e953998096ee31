"""Find the rows that are one problem: by an exact key, then by MinHash with a check that what counts agrees.

Which copy is kept is decided by rank (a verified solution first) and written into the reason of the others.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from rensa import RMinHash, RMinHashLSH

from concisecli.building import canonical, phrasing
from concisecli.building.cleaning import Drop
from concisecli.config import DedupConfig

PERMUTATIONS, BANDS, SEED = 128, 64, 7  # 2 rows a band: a pair at similarity 0.4 is missed once in 70,000 times
CHUNK = 2048
NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+")  # a capital in mid-sentence: who it is about
Agreement = Literal["equal", "different", "unknown"]
SameAnswers = Callable[[Sequence[tuple[str, str]]], list[bool]]  # which pairs of answers are equal

# Where one of these is in one text and not in the other, the texts ask for different things.
CRITICAL = canonical.words_of(
    "slope length distance midpoint height width depth speed velocity age cost price weight mass temperature "
    "probability variance coefficient intercept focus directrix period amplitude determinant trace inverse "
    "derivative integral circle row table line hundred thousand million increased decreased increase decrease gain "
    "loss profit cone cylinder pyramid prism tetrahedron octahedron parallelogram trapezoid rhombus kite ellipse "
    "parabola hyperbola divided multiplied added subtracted double triple halved not no never neither nor interior "
    "exterior consecutive without with except only even odd max min maximum minimum maximal minimal largest "
    "smallest greatest least most atleast atmost more less fewer greater smaller larger biggest highest lowest "
    "positive negative nonnegative nonpositive nonzero increasing decreasing before after first last second third "
    "fourth fifth sixth left right up down upper lower north south east west inside outside inscribed circumscribed "
    "sum difference product quotient ratio area perimeter circumference volume surface radius diameter replacement "
    "real integer rational irrational complex prime composite distinct same different row column horizontal "
    "vertical mean median mode range union intersection arithmetic geometric harmonic convex concave clockwise "
    "counterclockwise ascending descending closed open sine cosine tangent acute obtuse equal unequal divisible "
    "multiple factor divisor digit square cube root sphere circle triangle rectangle hexagon pentagon octagon or "
    "and any all some none each average total remainder permutation combination ordered unordered labeled unlabeled "
    "parallel perpendicular edge vertex face side angle bisector altitude centroid incenter circumcenter "
    "orthocenter domain solution day week month year hour minute january february march april may june july august "
    "september october november december monday tuesday wednesday thursday friday saturday sunday circumradius "
    "inradius heptagon nonagon decagon dodecagon quadrilateral dodecahedron icosahedron cuboid hemisphere "
    "semicircle annulus sector segment chord secant incircle circumcircle excircle gcd lcm common numerator "
    "denominator exponent degree root zero hundreds thousands ones units tens tenth tensplace boy girl man men "
    "woman women male female husband wife heads tails head tail red blue green white black yellow hundredth celsius "
    "fahrenheit simple compound wins loses win lose"
)
DIRECTED = canonical.words_of(
    "subtract subtracted subtracting minus less from divide divided dividing into exceeds than"
)
SAID_BY_SIGN = {"integral": "int", "logarithm": "log", "determinant": "det", "triangle": "triangle"}
MILD = canonical.words_of("all each any some total")  # often said or not, where the answers are equal


@dataclass(frozen=True, slots=True)
class Entry:
    """A row as dedup sees it. A smaller `rank` is kept rather than a larger one; ranks differ from row to row."""

    answer: str | None
    key: bytes
    mark: bytes  # of the quantities; only rows of one mark can be near repeats
    rank: tuple[int, ...]
    verified: bool
    place: str  # "source line 7", for the reasons


def duplicates(
    entries: Sequence[Entry], config: DedupConfig, same_answers: SameAnswers, texts: Mapping[int, str]
) -> dict[int, Drop]:
    """Index -> why that row goes; `texts` by index. Every row that is not in the result is kept."""
    drops, kept = exact_duplicates(entries, config, same_answers)
    if config.near:
        drops |= near_duplicates(entries, kept, config, same_answers, texts)
    return drops


def exact_duplicates(
    entries: Sequence[Entry], config: DedupConfig, same_answers: SameAnswers
) -> tuple[dict[int, Drop], list[int]]:
    """Repeats by key and the rows kept, best rank first. Repeats whose answers differ are conflicts."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for i, entry in enumerate(entries):
        groups[entry.key].append(i)
    several = [sorted(group, key=lambda i: entries[i].rank) for group in groups.values() if len(group) > 1]
    classes = _answer_classes(entries, several, same_answers)
    drops: dict[int, Drop] = {}
    for group, of_answer in zip(several, classes, strict=True):
        drops |= _resolve(entries, group, of_answer, config)
    kept = sorted((i for i in range(len(entries)) if i not in drops), key=lambda i: entries[i].rank)
    return drops, kept


def _answer_classes(
    entries: Sequence[Entry], groups: Sequence[list[int]], same_answers: SameAnswers
) -> list[dict[str, str]]:
    """For each group: answer -> the first answer of the group that it equals."""
    texts = [list(dict.fromkeys(entries[i].answer or "" for i in group)) for group in groups]
    pairs = [(other[0], answer) for other in texts for answer in other[1:]]
    pairs += [(a, b) for other in texts for at, a in enumerate(other[1:], 2) for b in other[at:]]
    equal = dict(zip(pairs, same_answers(pairs), strict=True))
    classes = []
    for other in texts:
        leader: dict[str, str] = {}
        for answer in other:
            found = (first for first in dict.fromkeys(leader.values()) if equal.get((first, answer)))
            leader[answer] = next(found, answer)
        classes.append(leader)
    return classes


def _resolve(
    entries: Sequence[Entry], group: list[int], of_answer: dict[str, str], config: DedupConfig
) -> dict[int, Drop]:
    """What happens to the members of one group of repeats, best rank first."""
    if len(set(of_answer.values())) == 1:
        return {i: _repeat(entries[group[0]]) for i in group[1:]}
    answers = " | ".join(dict.fromkeys(entries[i].answer or "" for i in group))
    verified = {of_answer[entries[i].answer or ""] for i in group if entries[i].verified}
    if config.conflicts == "verified" and len(verified) == 1:
        right = verified.pop()
        keep = next(i for i in group if entries[i].verified)
        return {
            i: _repeat(entries[keep])
            if of_answer[entries[i].answer or ""] == right
            else Drop("conflict", f"answers {answers}; the verified one is kept at {entries[keep].place}")
            for i in group
            if i != keep
        }
    places = ", ".join(entries[i].place for i in group[:4])
    return {i: Drop("conflict", f"answers {answers} at {places}") for i in group}


def _repeat(kept: Entry) -> Drop:
    return Drop("duplicate", f"of {kept.place}" + (", which has a verified solution" if kept.verified else ""))


# --- near duplicates --------------------------------------------------------------------------------------------------


def near_duplicates(
    entries: Sequence[Entry],
    kept: Sequence[int],
    config: DedupConfig,
    same_answers: SameAnswers,
    problems: Mapping[int, str],
) -> dict[int, Drop]:
    """Rows that are, in other words, a row of better rank. `kept` is ordered by rank, `problems` are texts by index."""
    shared = Counter(entries[i].mark for i in kept)
    possible = [i for i in kept if shared[entries[i].mark] > 1]
    pairs = list(_alike(problems, possible, config.similarity))
    both = [(a, b) for a, b in pairs if entries[a].answer and entries[b].answer]
    verdicts = same_answers([(entries[a].answer or "", entries[b].answer or "") for a, b in both])
    equal = dict(zip(both, verdicts, strict=True))
    drops: dict[int, Drop] = {}
    for later, earlier in pairs:
        if later in drops or earlier in drops:
            continue
        answers: Agreement = "unknown" if (later, earlier) not in equal else _said(equal[later, earlier])
        if same_problem(problems[later], problems[earlier], answers):
            drops[later] = Drop("near-duplicate", f"of {entries[earlier].place}")
    return drops


def _said(equal: bool) -> Agreement:
    return "equal" if equal else "different"


def _alike(problems: Mapping[int, str], numbers: Sequence[int], similarity: float) -> Iterator[tuple[int, int]]:
    """Pairs (later, earlier) in rank whose shingles are alike and whose quantities are equal. Shingles carry the
    quantities with them, so that a template with a thousand different numbers makes no pairs at all."""
    index = RMinHashLSH(similarity, PERMUTATIONS, BANDS)
    for start in range(0, len(numbers), CHUNK):
        chunk = numbers[start : start + CHUNK]
        shingles = [signed_shingles(problems[i]) for i in chunk]
        for at, sketch in enumerate(RMinHash.from_token_sets(shingles, PERMUTATIONS, SEED)):
            found = index.query(sketch)
            index.insert(start + at, sketch)
            own = set(shingles[at])
            for other in sorted(found):
                if jaccard(own, set(signed_shingles(problems[numbers[other]]))) >= similarity:
                    yield chunk[at], numbers[other]


def quantity_mark(problem: str) -> bytes:
    """8 bytes that are equal for texts with the same quantities, in whatever order, the form of the answer and choices
    aside."""
    return _mark(canonical.tokens(phrasing.bare(problem)))


def _mark(words: tuple[str, ...]) -> bytes:
    quantities = "\x1f".join(sorted(canonical.firm_quantities(words)))
    return hashlib.blake2b(quantities.encode(), digest_size=8).digest()


def signed_shingles(problem: str) -> list[str]:
    """Content words and pairs of neighbouring ones, each with the mark of all quantities of the text."""
    words = canonical.tokens(phrasing.bare(problem))
    mark = _mark(words).hex()
    content = canonical.content(words)
    return [f"{mark} {shingle}" for shingle in (*content, *canonical.shingles(content, 2))] or [mark]


def jaccard(a: set[str], b: set[str]) -> float:
    return len(a & b) / len(a | b) if a or b else 1.0


def same_problem(a: str, b: str, answers: Agreement) -> bool:
    """Whether two alike texts are one problem: quantities agree in order, answers do not differ, and the words that
    differ neither change the question nor are many."""
    if answers == "different" or not _same_choices(a, b):
        return False
    a, b = phrasing.bare(a), phrasing.bare(b)
    if _same_sentences(a, b):
        return True
    words_a, words_b = canonical.tokens(a), canonical.tokens(b)
    (whole_a, rest_a), (whole_b, rest_b) = (canonical.formulas(w, _directed(w)) for w in (words_a, words_b))
    if answers == "equal" and not _directed(words_a):  # the others are the same, by the mark
        rest_a, rest_b = (tuple(w for w in rest if len(w) == 1 or not w.islower()) for rest in (rest_a, rest_b))
    if (whole_a, rest_a) != (whole_b, rest_b):
        return False
    if answers == "equal" and phrasing.reordered(a, b, _telling, canonical.is_quantity):
        return True
    names = {name.lower() for text in (a, b) for name in NAME.findall(text)}
    plain_a, plain_b = canonical.plain(words_a), canonical.plain(words_b)
    if plain_a != plain_b and phrasing.DIRECTED.search(a) and Counter(plain_a) == Counter(plain_b):
        return False  # flour for milk
    differing = [w for w in differing_words(plain_a, plain_b) if SAID_BY_SIGN.get(w) not in words_a]
    if answers == "equal":
        differing = [word for word in differing if word not in MILD]
    if any(word in CRITICAL or word in names for word in differing):
        return False
    if one_for_another(plain_a, plain_b) or letter_for_letter(words_a, words_b):
        return False
    allowed = 0.25 if answers == "equal" else 0.02
    size = len(canonical.content(words_a)) + len(canonical.content(words_b))
    return len(differing) <= allowed * size


def _telling(text: str) -> Sequence[str]:
    return [word for word in canonical.content(canonical.tokens(text)) if word not in ("a", "A")]


def _directed(words: Sequence[str]) -> bool:
    """Whether formulas must stay in the order they are told in: `subtract $a$ from $b$`."""
    return any(word in DIRECTED for word in words)


def _same_choices(a: str, b: str) -> bool:
    """Whether two problems have the same choices, or one of them none and the other a question without them."""
    (stem_a, of_a), (stem_b, of_b) = phrasing.choices(a), phrasing.choices(b)
    if of_a and of_b:
        return canonical.tokens(of_a) == canonical.tokens(of_b)
    return not (of_a or of_b) or not re.search(
        r"\b(?:which|following|these)\b", stem_a if of_a else stem_b, re.IGNORECASE
    )


def one_for_another(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether one word stands in the place of another where both texts know both: the father for the son."""
    changes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    swapped = [(a[i1:i2], b[j1:j2]) for tag, i1, i2, j1, j2 in changes if tag == "replace"]
    return any(x in b and y in a for there, here in swapped for x, y in zip(there, here, strict=False))


def letter_for_letter(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether one letter stands in the place of another where both texts know both, in a name such as ABC too: `find
    $x$` for `find $y$`."""
    changes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    swapped = [(_letters(a[i1:i2]), _letters(b[j1:j2])) for tag, i1, i2, j1, j2 in changes if tag == "replace"]
    in_a, in_b = ({letter for word in text if len(word) == 1 or word.isupper() for letter in word} for text in (a, b))
    return any((there - here) & in_b and (here - there) & in_a for there, here in swapped)


def _letters(words: Sequence[str]) -> set[str]:
    return {word for word in words if len(word) == 1 and word.isalpha() and word != "a"}


def differing_words(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """The words that a change of one text into the other deletes and inserts; a word that moved is both."""
    changes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [w for tag, i1, i2, j1, j2 in changes if tag != "equal" for w in (*a[i1:i2], *b[j1:j2])]


def _same_sentences(a: str, b: str) -> bool:
    return sorted(map(canonical.tokens, _sentences(a))) == sorted(map(canonical.tokens, _sentences(b)))


def _sentences(text: str) -> Iterable[str]:
    return (part for part in re.split(r"(?<=[.!?])\s+|\n+", text) if part.strip())
