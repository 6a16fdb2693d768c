"""Feature shift: embeddings, clusters, and their cache."""

import shutil

import numpy as np
import pytest

from fednlp.errors import ModelError, PartitionError
from fednlp.partition import PartitionSpec, make_partition
from fednlp.partition.embed import _cached, _key, embed
from fednlp.partition.methods.cluster import cluster_groups

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ball", "goal", "team", "bank", "stock", "price"]
TEXTS = ["ball goal team", "bank", "stock price bank stock price", "", "team team", "goal bank"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A tiny BERT with random weights, as a folder."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import BertProcessing
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )
        BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDNLP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "embeddings"


def by_hand(text, encoder, max_length):
    """One text alone, without padding: the plain definition."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(encoder)(
        text, truncation=True, max_length=max_length, return_tensors="pt"
    )
    with torch.inference_mode():
        states = AutoModel.from_pretrained(encoder).eval()(input_ids=tokens["input_ids"]).last_hidden_state[0]
    mean = states.mean(0)
    return (mean / mean.norm()).numpy()


@pytest.mark.parametrize("max_length", [16, 4])
def test_an_embedding_is_the_mean_of_the_tokens(encoder, monkeypatch, max_length):
    monkeypatch.setattr("fednlp.partition.embed._BATCH", 2)
    monkeypatch.setattr("fednlp.partition.embed._AT_ONCE", 4)
    seen = []
    vectors = embed(TEXTS, encoder, max_length=max_length, progress=lambda done, of: seen.append((done, of)))
    assert vectors.dtype == np.float32
    assert seen == [(2, 6), (4, 6), (6, 6)]
    for text, vector in zip(TEXTS, vectors, strict=True):
        np.testing.assert_allclose(vector, by_hand(text, encoder, max_length), atol=1e-5)


@pytest.mark.parametrize("sizes", [(2, 0, 4), (6,), (1, 5)])
def test_a_group_is_embedded_as_if_it_were_alone(encoder, monkeypatch, sizes):
    monkeypatch.setattr("fednlp.partition.embed._BATCH", 2)
    monkeypatch.setattr("fednlp.partition.embed._AT_ONCE", 3)
    ends = np.cumsum(sizes)
    parts = [TEXTS[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    alone = np.concatenate([embed(part, encoder) for part in parts])
    assert np.array_equal(embed(TEXTS, encoder, groups=sizes), alone)


def test_what_was_embedded_once_is_read(encoder, cache, monkeypatch):
    first = embed(TEXTS, encoder)
    (path,) = cache.iterdir()
    with monkeypatch.context() as without:
        without.setattr("fednlp.partition.embed._encode", None)
        assert np.array_equal(embed(TEXTS, encoder), first)
        for other in ({"texts": TEXTS[::-1]}, {"max_length": 3}):
            with pytest.raises(TypeError):
                embed(**{"texts": TEXTS, "encoder": encoder} | other)
    for damage in (
        path.read_bytes()[:-30],
        b"",
        path.read_bytes().replace(first[0].tobytes(), first[1].tobytes(), 1),
    ):
        path.write_bytes(damage)
        assert np.array_equal(embed(TEXTS, encoder), first)
    whole = bytearray(path.read_bytes())
    for place in range(whole.index(b"PK\x01\x02"), len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        vectors = _cached(path, len(TEXTS))
        assert vectors is None or np.array_equal(vectors, first)


def test_texts_that_join_alike_are_told_apart(encoder, cache):
    embed(["ball goal"], encoder)
    embed(["ball", " goal"], encoder)
    assert len(list(cache.iterdir())) == 2


def test_no_texts_have_no_embeddings(encoder):
    assert embed([], encoder).shape == (0, 16)


def test_an_encoder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no model folder"):
        embed(TEXTS, str(tmp_path / "nothing"))


def blobs(count=90):
    rng = np.random.default_rng(0)
    centres = 10 * np.eye(3, 8)
    which = np.arange(count) % 3
    return (centres[which] + rng.normal(0, 0.1, (count, 8))).astype(np.float32), which


def test_clusters_that_are_apart_are_found():
    vectors, which = blobs()
    train, test = cluster_groups(vectors[:60], vectors[60:], 3, seed=0)
    found = [set(np.r_[train, test][which == k]) for k in range(3)]
    assert all(len(ids) == 1 for ids in found)
    assert set.union(*found) == {0, 1, 2}
    again = cluster_groups(vectors[:60], vectors[60:], 3, seed=0)
    assert np.array_equal(train, again[0])
    assert np.array_equal(test, again[1])


def test_many_texts_are_clustered_by_a_sample(monkeypatch):
    vectors, which = blobs(900)
    monkeypatch.setattr("fednlp.partition.methods.cluster._FITTED_AT_MOST", 30)
    train, _ = cluster_groups(vectors, vectors[:0], 3, seed=0)
    assert all(len(set(train[which == k])) == 1 for k in range(3))


def test_more_clusters_than_texts_are_refused_and_equal_texts_are_not():
    vectors = np.zeros((4, 2), np.float32)
    with pytest.raises(
        PartitionError,
        match=r"4 training examples cannot make 5 clusters: say at most partition.clusters = 4",
    ):
        cluster_groups(vectors, vectors, 5, seed=0)
    train, test = cluster_groups(vectors, vectors, 3, seed=0)
    assert len(set(train) | set(test)) == 1


def test_a_client_holds_texts_of_few_clusters(encoder):
    texts = ["ball goal team", "bank stock price"] * 40
    spec = PartitionSpec("cluster", clients=8, alpha=1e-4, clusters=2, encoder=encoder)
    part = make_partition(spec, [0] * 80, [0] * 20, train_texts=texts, test_texts=texts[:20], num_labels=1)
    kinds = [set(part.train(client) % 2) for client in range(8)]
    assert sum(len(kind) == 1 for kind in kinds) >= 4
    assert all(set(part.test(c) % 2) <= kinds[c] for c in range(8))
    assert sorted(part.test_indices) == list(range(20))


def test_encoders_by_name_have_vectors_of_their_own():
    assert _key(TEXTS, "hub/one", 16) != _key(TEXTS, "hub/two", 16)
    assert _key(TEXTS, "hub/one", 16) == _key(TEXTS, "hub/one", 16)


def test_an_encoder_in_another_folder_is_the_same(encoder, tmp_path):
    copy = shutil.copytree(encoder, tmp_path / "copy")
    assert _key(TEXTS, encoder, 16) == _key(TEXTS, str(copy), 16)


def test_vectors_of_other_texts_are_not_read(tmp_path):
    np.savez(tmp_path / "vectors.npz", vectors=np.zeros((3, 2), dtype=np.float32))
    assert _cached(tmp_path / "vectors.npz", 3) is not None
    assert _cached(tmp_path / "vectors.npz", 4) is None
    assert _cached(tmp_path / "vectors.npz", 2) is None


def test_one_cluster_holds_all():
    vectors, _ = blobs()
    train, test = cluster_groups(vectors[:60], vectors[60:], 1, seed=0)
    assert set(train) | set(test) == {0}
