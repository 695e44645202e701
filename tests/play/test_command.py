"""The command `metastep play`, from its first line to Ctrl-C."""

import re
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

from metastep.cli.use import has_screen


def test_it_says_where_and_ends_at_ctrl_c() -> None:
    command = [sys.executable, "-m", "metastep", "play", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        found = re.fullmatch(r"Draw at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line)
        assert found, line
        with urlopen(found[1], timeout=20) as page:
            assert b"<title>metastep play</title>" in page.read()
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=20)[0], process.returncode) == ("\nStopped.\n", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there always is a screen")
def test_without_a_screen_no_browser_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not has_screen()
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_screen()
