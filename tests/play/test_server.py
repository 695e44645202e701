"""What the server answers, what it refuses, and with what words."""

import http.client
import io
import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from metastep.errors import MetastepError
from metastep.play import questions
from metastep.play.questions import LARGEST
from metastep.play.server import FILES, Server, is_local
from metastep.play.session import Session
from tests.train.fewshot.use_helpers import SIZE, drawings, fresh

STROKES = {"lying": [[[0.1, 0.5], [0.9, 0.5]]], "standing": [[[0.5, 0.1], [0.5, 0.9]]]}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(Session.of(fresh(drawings())), "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def asked(server: Server, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """The status, the headers and the content of an answer"""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("GET" if body is None else "POST", path, data, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, json.loads(content) if "json" in answer.headers["Content-Type"] else content


def file_of(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def seen(server: Server, shape: str) -> str:
    return str(asked(server, "/api/strokes", {"strokes": STROKES[shape]})[2]["pixels"])


@pytest.mark.parametrize("path", FILES)
def test_the_page_loads_nothing_from_elsewhere(path: str, server: Server) -> None:
    status, headers, content = asked(server, path)
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert b"http:" not in content
    assert b"https:" not in content


def test_drawings_are_told_apart(server: Server) -> None:
    lying, standing = seen(server, "lying"), seen(server, "standing")
    question = {"classes": [[lying], [standing]], "queries": [standing, lying]}
    status, _, said = asked(server, "/api/answer", question)
    assert status == 200
    assert [each["name"] for each in said["learners"]] == ["Learner", "Untrained"]
    for each in said["learners"]:
        assert each["milliseconds"] > 0
        assert np.argmax(each["probabilities"], 1).tolist() == [1, 0]
        assert np.sum(each["probabilities"], 1) == pytest.approx([1, 1])


def test_the_page_learns_what_it_must_know(server: Server) -> None:
    said = asked(server, "/api/about")[2]
    assert (said["draws"], said["size"], said["ways"], said["largest"]) == (True, SIZE, [2, 10], LARGEST)


def test_a_photo_of_dark_ink_is_seen_as_the_drawing_is(server: Server) -> None:
    picture = np.full((90, 90), 200, np.uint8)
    picture[40:50, 15:75] = 30
    status, _, said = asked(server, "/api/picture", file_of(Image.fromarray(picture)))
    pixels = np.frombuffer(b64decode(said["pixels"]), np.uint8).reshape(SIZE, SIZE)
    assert (status, pixels[0, 0]) == (200, 0)
    assert pixels[SIZE // 2, SIZE // 2] > 200


WRONG = {
    "no JSON": ("/api/answer", b"{", "Invalid JSON"),
    "nothing": ("/api/answer", b"", "Invalid JSON"),
    "other fields": ("/api/answer", {"classes": [], "queries": [], "more": 1}, "classes: List should have at least 2"),
    "one class": ("/api/answer", {"classes": [["AAAA"]], "queries": []}, "at least 2"),
    "many classes": ("/api/answer", {"classes": [["AAAA"]] * 11, "queries": []}, "at most 10"),
    "an empty class": ("/api/answer", {"classes": [[], ["AAAA"]], "queries": []}, "classes.0: List should have at"),
    "no base64": ("/api/answer", {"classes": [["?"], ["?"]], "queries": []}, "a picture of 0 bytes"),
    "another size": ("/api/answer", {"classes": [["AAAA"], ["AAAA"]], "queries": []}, f"this learner takes 1×{SIZE}"),
    "no strokes": ("/api/strokes", {"strokes": []}, "strokes: List should have at least 1"),
    "an empty stroke": ("/api/strokes", {"strokes": [[]]}, "at least 1"),
    "outside": ("/api/strokes", {"strokes": [[[0.5, 1.5]]]}, "less than or equal to 1"),
    "not a number": ("/api/strokes", b'{"strokes": [[[0.5, NaN]]]}', "strokes.0.0.1"),
    "endless strokes": ("/api/strokes", {"strokes": [[[0, 0]] * 5_001]}, "at most 5000"),
    "not a picture": ("/api/picture", b"some words", "This file: is not an image in a known format. Remove it"),
    "an empty picture": ("/api/picture", b"", "This file: is empty"),
    "a blank picture": ("/api/picture", file_of(Image.new("L", (90, 90), 200)), "This file: has one colour alone"),
    "a single pixel": ("/api/picture", file_of(Image.new("L", (1, 1), 30)), "This file: has one colour alone"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_answered_is_refused_in_words(what: str, server: Server) -> None:
    path, body, words = WRONG[what]
    status, _, said = asked(server, path, body)
    assert (status, words in said["error"]) == (400, True), said


@pytest.mark.parametrize("path", ["/../server.py", "/page", "/api/answer/", "/index.html"])
def test_there_is_nothing_else(path: str, server: Server) -> None:
    assert asked(server, path)[0] == asked(server, path, {})[0] == 404


def test_an_upload_that_is_too_large_is_not_read(server: Server) -> None:
    status, headers, said = asked(server, "/api/picture", b"", **{"Content-Length": str(LARGEST + 1)})
    assert (status, headers["Connection"]) == (413, "close")
    assert said["error"] == "this is larger than 10 MiB. Save a smaller copy, and choose that."


@pytest.mark.parametrize("length", ["-1", "many", "²"])
def test_an_upload_says_how_long_it_is(length: str, server: Server) -> None:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    connection.putrequest("POST", "/api/picture")
    connection.putheader("Content-Length", length.encode())
    connection.endheaders()
    assert connection.getresponse().status == 411
    connection.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "[", "127.0.0.1.evil.example", "a@b@c"])
def test_a_foreign_name_for_this_computer_is_refused(host: str, server: Server) -> None:
    status, _, said = asked(server, "/", Host=host)
    assert (status, server.url in said["error"]) == (403, True)


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_its_own_names_are_taken(host: str, server: Server) -> None:
    assert asked(server, "/", Host=host)[0] == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_other_pages_may_not_ask(origin: str, server: Server) -> None:
    assert asked(server, "/api/answer", {}, Origin=origin)[0] == 403
    own = f"http://127.0.0.1:{server.server_address[1]}"
    assert asked(server, "/api/answer", {}, Origin=own)[0] == 400


def test_a_port_in_use_is_named(server: Server) -> None:
    port = int(server.server_address[1])
    with pytest.raises(MetastepError, match=f"--port {port}: cannot listen there .* Choose another port, or 0"):
        Server(server.session, "127.0.0.1", port)


def test_local_addresses() -> None:
    addresses = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "192.168.0.2", "example.org")
    assert list(map(is_local, addresses)) == [True, True, True, False, False, False]


def test_photos_cannot_be_drawn() -> None:
    photos = drawings()
    photos = replace(photos, data=replace(photos.data, name="cifar_fs"))
    with pytest.raises(MetastepError, match="trained on photos"):
        questions.strokes(Session.of(fresh(photos)), b"{}")


def test_the_same_examples_are_adapted_to_once(server: Server) -> None:
    blank = b64encode(bytes(SIZE * SIZE)).decode()
    question = {"classes": [[blank], [seen(server, "lying")]], "queries": []}
    once, twice = (asked(server, "/api/answer", question)[2]["learners"] for _ in range(2))
    assert once == twice
    assert asked(server, "/api/answer", question | {"classes": question["classes"][::-1]})[2]["learners"] != once
