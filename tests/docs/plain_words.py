"""Find sentences of the documentation that have to be read twice.

The rule is: name the subject, use the field's word, one idea a sentence. Three marks
show where it was broken: words that stand in place of a noun, words of our own where
the field has one, and sentences that are too long. The pages under docs, those at the
top, and the descriptions in api/openapi.yaml are read; decisions, the changelog and
generated pages are not.

Usage: plain_words.py [FILE...]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A sentence of more words than this holds more than one idea. Code counts as one word.
MAX_WORDS = 30

_NOUN = "name the thing: a noun in place of"
_PREPOSITIONS = (
    "of|to|by|for|from|with|without|than|and|or|as|in|on|at|into|below|beyond|beside|about"
    "|against|is|are"
)
# An indirect question is plain ("the log says what failed"), and so is "what to do".
_ASKING = (
    "say",
    "says",
    "said",
    "show",
    "shows",
    "know",
    "knows",
    "decide",
    "decides",
    "see",
    "ask",
)
_WHAT = "(?i)" + "".join(rf"(?<!\b{verb} )" for verb in _ASKING) + r"\bwhat\b(?! to\b)(?!.*\?$)"

# What is looked for, and what to do about it. The first match of a row is reported.
MARKS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (_WHAT, f"{_NOUN} 'what'"),
        (r"^Where\b(?=.*,)(?!.*\?$)", "say if or when"),
        (r"(?i)(?:^|[:;] )who\b(?= \S+ \S)(?!.*\?$)", f"{_NOUN} 'who'"),
        (rf"(?i)\b(?:{_PREPOSITIONS}) (?:who|whom)\b(?! to\b)", f"{_NOUN} 'who'"),
        (r"(?i)\b(?:whoever|whatever|whomever)\b", f"{_NOUN} the question word"),
        (r"(?i)\b(?:that|those) of\b", "repeat the noun in place of 'that of'"),
        (r"(?i)\bthose (?:that|which|who|whom|whose|with|for|from)\b", f"{_NOUN} 'those'"),
        (r"(?i)\bthe ones? (?:that|which|who|whose|of|for)\b", f"{_NOUN} 'the one'"),
        (r"(?i)\b(?:no|some|every|any)body\b", "say which person or program: user, client, tenant"),
        (
            r"(?i)\b(?:is|are|was|were|be|been) (?:not )?there\b",
            "say exists, runs, is available or is stored",
        ),
        (r"(?i)\btell(?:s|ing)? (?:of|apart)\b|\btold\b", "say report, notify, state or separate"),
        (r"(?i)\b(?:go|goes|going|went|gone) on\b", "say continue, keep running or resume"),
        (r"(?i)\bruns? on(?=[.,;]| until\b|$)", "say keep running"),
        (r"^Of\b(?= \S)(?!.*,)|^There (?:when|once|with|unless)\b", "begin with the noun"),
        (r"(?i)\bunder way\b", "say running or in progress"),
        (r"(?i)\b(?:let|lets|letting) go\b", "say release or free"),
        (r"(?i)\banew\b", "say again"),
        (r"(?i)\blook(?:s|ed|ing)? after\b", "say manage"),
        (r"(?i)\bat last\b", "say finally, or when"),
        (r"(?i)\bso (?:many|much) (?:again|back)\b", "say the quantity"),
    )
)

_FENCE = re.compile(r"\s*(```+|~~~+)")
_CODE = re.compile(r"(`+).+?\1")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.|- \[[ x]\])\s+")
_RULE = re.compile(r"\s*\|?[\s:|-]+\|?\s*")
_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')*_])|(?<=[.!?]\*\*))\s+(?=[\"'(*_]*[A-Z0-9`\[])")
_WORD = re.compile(r"[^\W_][\w'.,/-]*")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf)\.$")
_GENERATED = re.compile(r"<!-- bench: written by .*?<!-- bench ends -->", re.DOTALL)
_KEY = re.compile(r"(?:^|[\s{,-])(?:description|summary):\s+")


@dataclass(frozen=True)
class Text:
    """A piece of prose, and the line on which it begins."""

    line: int
    text: str


@dataclass(frozen=True)
class Finding:
    """A sentence that has to be read twice, and what to do about it."""

    file: str
    line: int
    sentence: str
    advice: str

    def __str__(self) -> str:
        """Name the place as editors understand."""
        return f"{self.file}:{self.line}: {self.advice}\n    {self.sentence}"


def markdown(text: str) -> Iterator[Text]:
    """Yield the prose of a page: paragraphs, list items, table cells and headings."""
    text = _GENERATED.sub(lambda table: "\n" * table[0].count("\n"), text)
    fence = ""
    begin, gathered = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if mark and (not fence or line.strip() == fence):
            fence = "" if fence else mark[1]
            line = ""
        elif fence:
            continue
        whole = line.lstrip().startswith(("#", "|", "<!--"))
        if gathered and (whole or not line.strip() or _ITEM.match(line)):
            yield Text(begin, gathered)
            gathered = ""
        if whole:
            yield from _row(number, line)
        elif line.strip():
            begin = begin if gathered else number
            gathered = f"{gathered} {_ITEM.sub('', line, count=1).strip()}".strip()
    if gathered:
        yield Text(begin, gathered)


def _row(number: int, line: str) -> Iterator[Text]:
    line = line.strip()
    if line.startswith("<!--") or _RULE.fullmatch(line):
        return
    cells = _cells(line) if line.startswith("|") else [line.lstrip("# ")]
    yield from (Text(number, cell.strip()) for cell in cells if cell.strip())


def _cells(line: str) -> list[str]:
    return re.split(r"\|", _CODE.sub(lambda code: code[0].replace("|", "/"), line))


def openapi(text: str) -> Iterator[Text]:
    """Yield the descriptions and summaries of a document in YAML."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        for key in _KEY.finditer(line):
            rest = line[key.end() :]
            flow = line[: key.start() + 1].lstrip(" -") != ""
            if rest[:1] in "|>":
                yield from _block(lines, number, len(line) - len(line.lstrip(" -")))
            elif rest[:1] in "'\"":
                yield Text(number, _quoted(rest))
            else:
                yield Text(number, re.split(r"[},]", rest)[0] if flow else rest)


def _block(lines: list[str], key: int, indent: int) -> Iterator[Text]:
    end = key
    while end < len(lines) and (
        not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent
    ):
        end += 1
    for text in markdown("\n".join(line.strip() for line in lines[key:end])):
        yield Text(key + text.line, text.text)


def _quoted(text: str) -> str:
    mark = text[0]
    end = re.search(r"'(?!')" if mark == "'" else r'(?<!\\)"', text[1:].replace("''", "  "))
    return text[1 : end.start() + 1 if end else None].replace("''", "'")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a piece of prose, as they stand there."""
    begun = ""
    for part in _END.split(text):
        begun = f"{begun} {part}".strip()
        if not _ABBREVIATION.search(begun):
            yield begun
            begun = ""
    if begun:
        yield begun


def judge(sentence: str) -> Iterator[str]:
    """Yield what to do about a sentence; nothing if it reads well."""
    plain = _LINK.sub(r"\1", sentence)
    plain = _CODE.sub("CODE", plain).replace("**", "").replace("*", "")
    for pattern, advice in MARKS:
        match = pattern.search(plain)
        if match:
            yield f"{match[0]!r}: {advice}"
    words = len(_WORD.findall(plain))
    if words > MAX_WORDS:
        yield f"{words} words, more than {MAX_WORDS}: make two sentences of it"


def findings_in(file: str, text: str) -> list[Finding]:
    """Return what to change in a file."""
    pieces = openapi(text) if file.endswith((".yaml", ".yml")) else markdown(text)
    return [
        Finding(file, piece.line, sentence, advice)
        for piece in pieces
        for sentence in sentences(piece.text)
        for advice in judge(sentence)
    ]


def documents() -> list[Path]:
    """Return the files that are read."""
    left_out = {ROOT / "CHANGELOG.md", ROOT / "docs/benchmarks/report.md"}
    return [
        file
        for file in [
            *sorted(ROOT.glob("*.md")),
            *sorted((ROOT / "docs").rglob("*.md")),
            *sorted((ROOT / "sdk").glob("*/README.md")),
            ROOT / "api/openapi.yaml",
        ]
        if file not in left_out and ROOT / "docs/adr" not in file.parents
    ]


def main(args: list[str]) -> int:
    """Print what to change, and return the exit code."""
    findings: list[Finding] = []
    for file in [Path(arg).resolve() for arg in args] or documents():
        name = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)
        findings += findings_in(name, file.read_text(encoding="utf-8"))
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
