"""``paddle.dataset.conll05``: sentences with the roles of their parts (CoNLL-2005, the part that is free: its test set)."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fluidlite.compat.dataset import common
from fluidlite.compat.dataset.archives import member, opened_tar
from fluidlite.compat.dataset.common import Reader
from fluidlite.errors import CorruptFileError

__all__ = [
    "corpus_reader",
    "fetch",
    "get_dict",
    "get_embedding",
    "load_dict",
    "load_label_dict",
    "reader_creator",
    "test",
]

DATA_URL = "http://paddlemodels.bj.bcebos.com/conll05st/conll05st-tests.tar.gz"
DATA_MD5 = "387719152ae52d60422c016e92a742fc"
WORDDICT_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2FwordDict.txt"
WORDDICT_MD5 = "ea7fb7d4c75cc6254716f0177a506baa"
VERBDICT_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2FverbDict.txt"
VERBDICT_MD5 = "0d2977293bbb6cbefab5b0f97db1e77c"
TRGDICT_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2FtargetDict.txt"
TRGDICT_MD5 = "d8c7f03ceb5fc2e5a0fa7503a4353751"
EMB_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2Femb"
EMB_MD5 = "bf436eb0faa1f6f9103017f8be57cdb7"
UNK_IDX: Final = 0
_FOLDER: Final = "conll05st"
#: words around the verb whose numbers are features of their own
_CONTEXT: Final = range(-2, 3)


def load_dict(filename: str) -> dict[str, int]:
    """Line -> its number."""
    lines = Path(filename).read_text(encoding="utf-8").splitlines()
    return {line.strip(): number for number, line in enumerate(lines)}


def load_label_dict(filename: str) -> dict[str, int]:
    """ "B-tag" and "I-tag" of every tag -> 2k and 2k+1, in the order of the file (Fluid's differs from run to run); then "O"."""
    lines = [line.strip() for line in Path(filename).read_text(encoding="utf-8").splitlines()]
    tags = dict.fromkeys(line[2:] for line in lines if line.startswith(("B-", "I-")))
    labels = [f"{kind}-{tag}" for tag in tags for kind in "BI"]
    return {label: number for number, label in enumerate((*labels, "O"))}


def corpus_reader(data_path: str, words_name: str, props_name: str) -> Reader:
    """A reader of (words, verb, labels) for every verb of every sentence of an archive; labels are "B-", "I-" or "O".

    Raises CorruptFileError, when it is read, for an archive without these members and brackets that do not match.
    """

    def reader() -> Iterator[Any]:
        with (
            opened_tar(data_path) as archive,
            gzip.open(member(archive, words_name)) as words_file,
            gzip.open(member(archive, props_name)) as props_file,
        ):
            words: list[str] = []
            rows: list[list[str]] = []
            for word, props in zip(words_file, props_file, strict=False):
                fields = props.decode("utf-8").split()
                if fields:
                    words.append(word.decode("utf-8").strip())
                    rows.append(fields)
                else:
                    yield from _verbs(words, rows, data_path)
                    words, rows = [], []

    return reader


def _verbs(words: list[str], rows: Sequence[Sequence[str]], path: str) -> Iterator[Any]:
    """A sample of each verb: the first column names the verbs, each of the others brackets the parts of one."""
    columns = list(zip(*rows, strict=True))
    verbs = [word for word in columns[0] if word != "-"] if columns else []
    if len(verbs) != len(columns[1:]):
        raise CorruptFileError(f"{path}: a sentence has {len(verbs)} verbs and labels of {len(columns[1:])}")
    for verb, column in zip(verbs, columns[1:], strict=True):
        yield words, verb, _labels(column, path)


def _labels(column: Sequence[str], path: str) -> list[str]:
    """``(A0*``, ``*``, ``*)`` as ``B-A0``, ``I-A0``, ``I-A0``; ``O`` outside brackets."""
    labels, tag, inside = [], "O", False
    for mark in column:
        if "(" in mark:
            tag, inside = mark[1 : mark.find("*")], ")" not in mark
            labels.append(f"B-{tag}")
        elif mark == "*":
            labels.append(f"I-{tag}" if inside else "O")
        elif mark == "*)":
            labels.append(f"I-{tag}")
            inside = False
        else:
            raise CorruptFileError(f"{path}: unexpected label {mark!r}")
    return labels


def reader_creator(
    corpus_reader: Callable[[], Any],
    word_dict: Mapping[str, int],
    predicate_dict: Mapping[str, int],
    label_dict: Mapping[str, int],
) -> Reader:
    """A reader of nine lists as long as the sentence: numbers of words; of the words 2 and 1 before the verb, of the verb,
    and 1 and 2 behind it, repeated; of the predicate, repeated; 1 at these five places, else 0; of labels."""

    def reader() -> Iterator[Any]:
        for sentence, predicate, labels in corpus_reader():
            length, verb = len(sentence), labels.index("B-V")
            padded = ["bos", "bos", *sentence, "eos", "eos"]
            context = [word_dict.get(padded[verb + 2 + offset], UNK_IDX) for offset in _CONTEXT]
            yield (
                [word_dict.get(word, UNK_IDX) for word in sentence],
                *([number] * length for number in context),
                [predicate_dict.get(predicate)] * length,
                [int(abs(place - verb) <= 2) for place in range(length)],
                [label_dict.get(label) for label in labels],
            )

    return reader


def get_dict() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """(words, verbs, labels) -> numbers."""
    return (
        load_dict(common.download(WORDDICT_URL, _FOLDER, WORDDICT_MD5)),
        load_dict(common.download(VERBDICT_URL, _FOLDER, VERBDICT_MD5)),
        load_label_dict(common.download(TRGDICT_URL, _FOLDER, TRGDICT_MD5)),
    )


def get_embedding() -> str:
    """The path of the trained vectors of words."""
    return common.download(EMB_URL, _FOLDER, EMB_MD5)


def test() -> Reader:
    """The sentences; see `reader_creator`."""
    words, verbs, labels = get_dict()
    corpus = corpus_reader(
        common.download(DATA_URL, _FOLDER, DATA_MD5),
        words_name="conll05st-release/test.wsj/words/test.wsj.words.gz",
        props_name="conll05st-release/test.wsj/props/test.wsj.props.gz",
    )
    return reader_creator(corpus, words, verbs, labels)


def fetch() -> None:
    """Check that all files are there."""
    get_dict()
    get_embedding()
    common.download(DATA_URL, _FOLDER, DATA_MD5)
