"""A judge's cache that is damaged or contains other types is refused in a line, or the judge is asked again."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

import pytest

from mmprobe.benchmarks.core.api_models import Reply
from mmprobe.benchmarks.judges.cache import ReplyCache
from mmprobe.errors import InputError


@pytest.fixture
def file(tmp_path):
    with closing(ReplyCache(tmp_path / "judge.sqlite")) as cache:
        for number in range(50):
            cache.put(str(number), Reply('{"claims": []}' * 20, "stop"))
    return tmp_path / "judge.sqlite"


def read_all(file):
    with closing(ReplyCache(file)) as cache:
        return [cache.get(str(number)) for number in range(50)]


def test_a_reply_of_another_type_is_asked_again(file):
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE replies SET text = ? WHERE key = '3'", (b"\xff\xfe",))
    replies = read_all(file)
    assert replies[3] is None and sum(reply is None for reply in replies) == 1


def test_a_text_that_is_not_utf8_is_refused(file):
    content = file.read_bytes()
    file.write_bytes(content.replace(b'{"claims', b'{"\xff\xfeaims'))
    with pytest.raises(InputError, match="reply cache"):
        read_all(file)


@pytest.mark.slow
def test_damage_anywhere_is_one_line(file):
    rng, content, refused = random.Random(0), file.read_bytes(), 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 20, 500])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file.write_bytes(damaged)
        try:
            assert all(reply is None or isinstance(reply, Reply) for reply in read_all(file))
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
        for rest in file.parent.glob("judge.sqlite-*"):
            rest.unlink()
    assert refused > 100
