"""Prints samples of ``paddle.dataset`` as JSON, from small archives in the original layouts: ``dataset_script.py FOLDER``.

It runs under Fluid 1.8.5 on Python 3.7, which gave ``dataset_samples.json``, and under fluidlite, whose output is compared.
Where Fluid numbers words by the order of a set, words are printed in place of numbers.
"""

import gzip
import io
import json
import os
import re
import struct
import sys
import tarfile
import zipfile

import numpy as np
import paddle.dataset
from paddle.dataset import (
    cifar,
    common,
    conll05,
    imdb,
    imikolov,
    mnist,
    movielens,
    sentiment,
    uci_housing,
    wmt14,
    wmt16,
)

HOME = sys.argv[1]
WORDS = "the of and a film was good bad plot actor scene never always ending watch".split()


def write(module, name, content):
    folder = os.path.join(HOME, module)
    if not os.path.isdir(folder):
        os.makedirs(folder)
    path = os.path.join(folder, name)
    with open(path, "wb") as stream:
        stream.write(content)
    return common.md5file(path)


def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return out.getvalue()


def packed(content):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb") as stream:
        stream.write(content)
    return out.getvalue()


def sentence(made, length):
    return " ".join(WORDS[i] for i in made.randint(0, len(WORDS), length))


def pickled_text(text):
    return b"U" + struct.pack("B", len(text)) + text


def python2_batch(data, labels, key):
    """A batch of CIFAR as Python 2 pickled it: protocol 2, texts as bytes."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + pickled_text(b"b") + b"\x87R(K\x01"
        + b"K" + struct.pack("B", data.shape[0]) + b"M" + struct.pack("<H", data.shape[1]) + b"\x86"
        + b"cnumpy\ndtype\n" + pickled_text(b"u1") + b"K\x00K\x01\x87R"
        + b"(K\x03" + pickled_text(b"|") + b"NNN" + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89" + b"T" + struct.pack("<i", data.size) + data.tobytes() + b"tb"
    )  # fmt: skip
    numbers = b"](" + b"".join(b"K" + struct.pack("B", n) for n in labels) + b"e"
    return b"\x80\x02}(" + pickled_text(b"data") + array + pickled_text(key) + numbers + b"u."


def make_pictures(made):
    for part, prefix in (("TRAIN", "train"), ("TEST", "t10k")):
        pixels, labels = made.randint(0, 256, (100, 2, 3)).astype("uint8"), made.randint(0, 10, 100).astype("uint8")
        images = packed(struct.pack(">IIII", 2051, 100, 2, 3) + pixels.tobytes())
        setattr(mnist, part + "_IMAGE_MD5", write("mnist", prefix + "-images-idx3-ubyte.gz", images))
        found = packed(struct.pack(">II", 2049, 100) + labels.tobytes())
        setattr(mnist, part + "_LABEL_MD5", write("mnist", prefix + "-labels-idx1-ubyte.gz", found))

    def batch(key):
        return python2_batch(made.randint(0, 256, (3, 3072)).astype("uint8"), made.randint(0, 10, 3), key)

    ten = tar(
        [("cifar-10-batches-py/" + name, batch(b"labels")) for name in ("data_batch_2", "data_batch_1", "test_batch")]
    )
    cifar.CIFAR10_MD5 = write("cifar", "cifar-10-python.tar.gz", ten)
    hundred = tar([("cifar-100-python/" + name, batch(b"fine_labels")) for name in ("train", "test")])
    cifar.CIFAR100_MD5 = write("cifar", "cifar-100-python.tar.gz", hundred)


def make_numbers(made):
    rows = ["  ".join("%.4f" % number for number in row) for row in made.rand(10, 14) * 50]
    uci_housing.MD5 = write("uci_housing", "housing.data", ("\n".join(rows) + "\n").encode())
    movies = (
        b"1::Toy Story (1995)::Animation|Comedy\n2::Caf\xe9 (The Story) (1996)::Drama\n9::Heat (1995)::Crime|Drama\n"
    )
    users = b"1::F::1::10::48067\n2::M::56::16::70072\n7::M::25::15::55117\n"
    ratings = "".join(
        "%d::%d::%d::97\n" % ((1, 2, 7)[i % 3], (1, 2, 9)[i % 2 + i % 3 // 2], i % 5 + 1) for i in range(40)
    )
    files = [("ml-1m/movies.dat", movies), ("ml-1m/ratings.dat", ratings.encode()), ("ml-1m/users.dat", users)]
    movielens.MD5 = write("movielens", "movielens%2Fml-1m.zip", zipped(files))


def make_reviews(made):
    files = [
        ("aclImdb/%s/%s/%d_7.txt" % (part, kind, i), (sentence(made, 6) + ", Isn't it?! <br />\r\n").encode())
        for part in ("test", "train")
        for kind in ("neg", "pos", "unsup")
        for i in range(3)
    ]
    files.append(("aclImdb/train/pos/9_9.txt", b"great " * 151 + b"fine " * 150))
    imdb.MD5 = write("imdb", "imdb%2FaclImdb_v1.tar.gz", tar(files))
    files = [
        (
            "movie_reviews/%s/cv00%d_1.txt" % (kind, i),
            ("%s .\n%s , isn't it ? ( %d )\n" % (sentence(made, 5), sentence(made, 4), i)).encode(),
        )
        for kind in ("pos", "neg")
        for i in (1, 0, 2)
    ]
    sentiment.MD5 = write("corpora", "movie_reviews.zip", zipped([("movie_reviews/README", b"no review"), *files]))
    sentiment.NUM_TRAINING_INSTANCES = 4


def make_text(made):
    lines = ["%s %s" % (sentence(made, made.randint(1, 5)), "<unk>" if i % 3 else "") for i in range(12)]
    text = [(" " + line + " \n").encode() for line in lines]
    files = [
        ("./simple-examples/data/ptb.train.txt", b"".join(text[:8])),
        ("./simple-examples/data/ptb.valid.txt", b"".join(text[8:])),
    ]
    imikolov.MD5 = write("imikolov", "imikolov%2Fsimple-examples.tgz", tar(files))
    marks = "<s>\n<e>\n<unk>\n" + "\n".join(WORDS)
    pairs = (
        "".join("%s\t%s\n" % (sentence(made, 3), sentence(made, 4)) for _ in range(3))
        + "no pair\n"
        + "a " * 80
        + "\tthe\n"
    )
    parts = [("wmt14/%s/%s" % (name, name), pairs.encode()) for name in ("train", "test", "gen")]
    dicts = [("wmt14/src.dict", marks.encode()), ("wmt14/trg.dict", marks.replace("film", "movie").encode())]
    wmt14.MD5_TRAIN = write("wmt14", "wmt14.tgz", tar(dicts + parts))
    parts = [
        (
            "wmt16/" + name,
            "".join("%s\t%s\n" % (sentence(made, 3), sentence(made, 4).upper()) for _ in range(4)).encode(),
        )
        for name in ("train", "test", "val")
    ]
    wmt16.DATA_MD5 = write("wmt16", "wmt16.tar.gz", tar(parts))


def make_roles():
    words = "The cat chased a mouse .\n\nIt ran and hid\n\n".replace(" ", "\n")
    props = "- (A0*\n- *)\nchase (V*)\n- (A1*\n- *)\n- *\n\n- (A0*) (A0*)\nrun (V*) *\n- * *\nhide * (V*)\n\n"
    files = [
        ("conll05st-release/test.wsj/%s/test.wsj.%s.gz" % (kind, kind), packed(text.encode()))
        for kind, text in (("words", words), ("props", props))
    ]
    conll05.DATA_MD5 = write("conll05st", "conll05st-tests.tar.gz", tar(files))
    conll05.WORDDICT_MD5 = write("conll05st", "conll05st%2FwordDict.txt", b"<unk>\nbos\neos\nThe\ncat\nran\nand\n.\n")
    conll05.VERBDICT_MD5 = write("conll05st", "conll05st%2FverbDict.txt", b"chase\nrun\nhide\n")
    conll05.TRGDICT_MD5 = write("conll05st", "conll05st%2FtargetDict.txt", b"B-A1\nI-A1\nB-A0\nI-A0\nB-V\nI-V\nO\n")
    conll05.EMB_MD5 = write("conll05st", "conll05st%2Femb", b"no vectors")


def plain(value):
    """As JSON: arrays with dtype, shape and their first and last numbers."""
    if isinstance(value, np.ndarray):
        return [value.dtype.name, list(value.shape), [float(x) for x in value.reshape(-1)[[0, 1 % value.size, -1]]]]
    if isinstance(value, bytes):
        return "bytes:" + value.decode()
    if isinstance(value, dict):
        return sorted(
            ([plain(key), plain(item)] for key, item in value.items()), key=lambda pair: (str(pair[1]), pair[0])
        )
    if isinstance(value, (list, tuple)):
        return [type(value).__name__] + [plain(item) for item in value]
    return value


def some(samples):
    """Their number, the first two and the last."""
    samples = list(samples)
    return [len(samples)] + [plain(sample) for sample in samples[:2] + samples[-1:]]


def films():
    def named(sample):
        titles = {number: word for word, number in movielens.get_movie_title_dict().items()}
        categories = {number: name for name, number in movielens.movie_categories().items()}
        return sample[:5] + [[categories[c] for c in sample[5]], [titles[w] for w in sample[6]], sample[7]]

    return {
        "train": some(map(named, movielens.train()())),
        "test": some(map(named, movielens.test()())),
        "largest": [movielens.max_user_id(), movielens.max_movie_id(), movielens.max_job_id(), movielens.age_table],
        "words": sorted(movielens.get_movie_title_dict()),
        "categories": sorted(movielens.movie_categories()),
        "movie": repr(movielens.movie_info()[2]),
        "user": repr(movielens.user_info()[2]),
    }


def roles():
    words, verbs, labels = conll05.get_dict()
    names = {number: label for label, number in labels.items()}
    samples = [sample[:8] + ([names[n] for n in sample[8]],) for sample in conll05.test()()]
    return {
        "words": plain(words),
        "verbs": plain(verbs),
        "labels": sorted(labels),
        "numbers": sorted(names),
        "test": some(samples),
    }


def pieces():
    """What `split` writes, `cluster_files_reader` reads."""
    pattern = os.path.join(HOME, "piece-%05d")

    def dumper(lines, stream):
        stream.write(json.dumps(lines))

    common.split(lambda: iter([0]), 1, pattern, dumper)
    return list(common.cluster_files_reader(os.path.join(HOME, "piece-*"), 1, 0, json.load)())


def main():
    common.DATA_HOME = HOME
    made = np.random.RandomState(7)
    for make in (make_pictures, make_numbers, make_reviews, make_text):
        make(made)
    make_roles()
    reviews = imdb.build_dict(re.compile(r"aclImdb/((train)|(test))/((pos)|(neg))/.*\.txt$"), 2)
    words = imikolov.build_dict(2)
    print(json.dumps({
        "uci_housing": [some(uci_housing.train()()), some(uci_housing.test()()), plain(uci_housing.predict_reader())],
        "mnist": [some(mnist.train()()), some(mnist.test()())],
        "cifar": [some(read()) for read in (cifar.train10(), cifar.test10(), cifar.train100(), cifar.test100())],
        "imdb": [plain(reviews), plain(imdb.word_dict()), some(imdb.train(reviews)()), some(imdb.test(reviews)())],
        "imikolov": [plain(words), some(imikolov.train(words, 3)()), some(imikolov.test(words, 2)()),
                     some(imikolov.train(words, 0, imikolov.DataType.SEQ)()), some(imikolov.test(words, 5, imikolov.DataType.SEQ)())],
        "movielens": films(),
        "conll05": roles(),
        "wmt14": [some(wmt14.train(12)()), some(wmt14.test(18)()), some(wmt14.gen(18)()), plain(wmt14.get_dict(9)), plain(wmt14.get_dict(9, False))],
        "wmt16": [some(wmt16.train(9, 12)()), some(wmt16.test(30, 10, src_lang="de")()), some(wmt16.validation(9, 12)()),
                  plain(wmt16.get_dict("de", 12)), plain(wmt16.get_dict("en", 9, reverse=True))],
        "sentiment": [some(sentiment.train()), some(sentiment.test()), plain(sentiment.get_word_dict())],
        "common": pieces(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
