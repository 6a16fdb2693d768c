"""Frames and messages: what is packed comes back, and nothing else is let in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.deployment.session.messages import (
    CHUNK,
    MOST_FRAME,
    MOST_HEADER,
    Bye,
    Call,
    Get,
    Hello,
    ObjectChunk,
    ObjectRef,
    Reply,
    UploadChunk,
    VersionMismatch,
    Welcome,
    from_client,
    from_server,
    header,
    make_frame,
    pack,
    printable,
    reply_of,
    split_frame,
)
from fednlp.errors import ProtocolError

DIGEST = "0123456789abcdef" * 4

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=9,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=4)
ids = st.from_regex(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.[a-z][a-z0-9-]{0,31}", fullmatch=True)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
sizes = st.integers(0, 1 << 40)
refs = st.builds(ObjectRef, digests, sizes)
names = st.from_regex(r"[0-9A-Za-z][0-9A-Za-z._:-]{0,9}", fullmatch=True)
replies = st.builds(Reply, ids, st.none() | objects, st.none() | digests, sizes, st.none() | st.just("no"))
calls = st.builds(Call, ids, objects, st.dictionaries(names, refs, max_size=3))
payloads = st.binary(min_size=1, max_size=99)


@given(st.integers(0, 255), st.binary(max_size=300), st.binary(max_size=300))
def test_frames_come_back(kind: int, header: bytes, payload: bytes) -> None:
    frame = split_frame(make_frame(kind, header, payload))
    assert (frame.kind, frame.header, bytes(frame.payload)) == (kind, header, payload)


@given(replies | st.builds(Get, digests, sizes) | st.builds(Hello, st.just(1), st.just("1"), st.none()))
def test_messages_of_clients_come_back(message: Reply | Get | Hello) -> None:
    assert from_client(pack(message)) == (message, b"")


@given(calls)
def test_messages_of_servers_come_back(call: Call) -> None:
    assert from_server(pack(call)) == (call, b"")


@given(st.builds(UploadChunk, ids, sizes), st.builds(ObjectChunk, digests, sizes), payloads)
def test_chunks_come_back(up: UploadChunk, down: ObjectChunk, payload: bytes) -> None:
    assert from_client(pack(up, payload)) == (up, payload)
    assert from_server(pack(down, payload)) == (down, payload)


@given(replies)
def test_replies_come_back_from_files(reply: Reply) -> None:
    assert reply_of(header(reply)) == reply


def test_bounds_of_frames() -> None:
    assert len(make_frame(1, b"x" * MOST_HEADER, b"y" * CHUNK)) == MOST_FRAME
    for long in ((b"x" * (MOST_HEADER + 1), b""), (b"", b"y" * (CHUNK + 1))):
        with pytest.raises(ProtocolError, match="longer than"):
            make_frame(1, *long)
    with pytest.raises(ProtocolError, match="longer than"):
        split_frame(make_frame(1, b"", b"y" * CHUNK) + b"y")
    with pytest.raises(ProtocolError, match="a header of 4294967295 bytes is cut short"):
        split_frame(b"\x01\xff\xff\xff\xff")
    for short in (b"", b"\x01\x00\x00\x00"):
        with pytest.raises(ProtocolError, match="cut short"):
            split_frame(short)


@pytest.mark.parametrize(
    "value",
    [
        {"id": "1.0.train", "answer": None, "more": 1},
        {"id": "1.0.train"},
        {"id": "01.0.train", "answer": None},
        {"id": "../../etc", "answer": None},
        {"id": "1.0.Train", "answer": None},
        {"id": "1.0.train/..", "answer": None},
        {"id": "1.0.train\n", "answer": None},
        {"id": "1.0." + "a" * 33, "answer": None},
        {"id": "1.0.١", "answer": None},
        {"id": "1.0.train", "answer": []},
        {"id": "1.0.train", "answer": None, "digest": DIGEST.upper()},
        {"id": "1.0.train", "answer": None, "digest": "../" + DIGEST[3:]},
        {"id": "1.0.train", "answer": None, "digest": DIGEST + "\n"},
        {"id": "1.0.train", "answer": None, "size": -1},
        {"id": "1.0.train", "answer": None, "size": 2**41},
        {"id": "1.0.train", "answer": None, "size": 1.0},
        {"id": "1.0.train", "answer": None, "size": "1"},
        {"id": "1.0.train", "answer": None, "size": True},
        {"id": "1.0.train", "answer": None, "error": "red \x1b[31m"},
        {"id": "1.0.train", "answer": None, "error": "x" * 2001},
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(value: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="a Reply that does not fit: ") as error:
        from_client(make_frame(3, json.dumps(value).encode()))
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"{}x",
        b"\xff\xfe{\x00}\x00",
        b'{"id": "1.0.train", "answer": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"id": "1.0.train", "answer": {"a": ' + b"9" * 5000 + b"}}",
        b'{"id": "1.0.train", "answer": {"a": "\\ud800"}}',
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        from_client(make_frame(3, text))


def test_kinds_belong_to_one_side() -> None:
    for kind in (0, 6, 16, 25, 255):
        for parse in (from_client, from_server):
            with pytest.raises(ProtocolError, match=f"unknown kind: {kind}"):
                parse(make_frame(kind, b"{}"))
    with pytest.raises(ProtocolError, match="unknown kind"):
        from_client(pack(Welcome(1, "1", "run", 0)))
    with pytest.raises(ProtocolError, match="unknown kind"):
        from_server(pack(Bye("later")))


def test_payloads_belong_to_chunks() -> None:
    with pytest.raises(ProtocolError, match="a Bye with 1 bytes of payload"):
        from_client(pack(Bye("later"), b"x"))
    with pytest.raises(ProtocolError, match="a UploadChunk with 0 bytes of payload"):
        from_client(pack(UploadChunk("1.0.train", 0)))


def test_only_calls_and_replies_are_long() -> None:
    with pytest.raises(ProtocolError, match="the header of a Get has"):
        from_client(make_frame(2, b" " * (17 << 10) + header(Get(DIGEST, 0))))
    assert from_client(make_frame(3, b" " * (17 << 10) + header(Reply("1.0.train", None))))
    with pytest.raises(ProtocolError, match=r"the header of a Reply has .* and may have 1048576"):
        from_client(make_frame(3, b" " * (1 << 20) + header(Reply("1.0.train", None))))
    with pytest.raises(ProtocolError, match="the header of a Reply has"):
        pack(Reply("1.0.train", {"labels": "a" * (1 << 20)}))


def test_another_version_is_named_whatever_else_it_says() -> None:
    with pytest.raises(VersionMismatch, match=r"version 2 .* install the same version") as error:
        from_client(make_frame(1, b'{"version": 2, "software": "9.0", "new": true}'))
    assert (error.value.version, error.value.software) == (2, "9.0")
    with pytest.raises(ProtocolError, match="software"):
        from_client(make_frame(1, b'{"version": 2, "software": "9; rm -rf ~"}'))


def test_texts_are_made_printable() -> None:
    assert printable("a\x00b\u202e\n") == "a b  "
    assert len(printable("é" * 3000)) == 2000
