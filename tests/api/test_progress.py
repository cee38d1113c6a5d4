"""What the package shows while it works."""

import io
import logging
import os
import signal

import pytest
from test_oneshot import rows_of


class Terminal(io.StringIO):
    def isatty(self):
        return True


def show_steps(events, seconds, clock):
    for index, second in enumerate(seconds):
        clock[0] = second
        events.step(index, len(seconds), f"model.layers.{index}")
    events.close()


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set."""
    from layerpress import progress

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_a_minute_without_a_terminal(clock, monkeypatch, caplog):
    from layerpress.progress import Events

    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with caplog.at_level(logging.INFO, "layerpress"):
        show_steps(Events(True), [0, 30, 59, 61, 100, 122], clock)
        assert caplog.messages == ["3/6 model.layers.3", "5/6 model.layers.5"]
        show_steps(Events(False), [0, 100, 200], clock)
    assert stream.getvalue() == "" and len(caplog.messages) == 2


def test_bars_on_a_terminal_begin_where_the_run_does(monkeypatch, caplog):
    from layerpress.progress import Events

    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with caplog.at_level(logging.INFO, "layerpress"):
        events = Events(True)
        events.step(0, 10, "plan")
        events.step(6, 10, "model.layers.6")
        assert events._model.n == events._model.initial == 6
        events.step(7, 10, "model.layers.7")
        assert events._model.n == 7 and events._model.initial == 6
        events.close()
    assert "10/10" not in stream.getvalue() and "subgraph" in stream.getvalue() and caplog.messages == []


def test_a_stopped_run_of_a_model_in_memory_leaves_nothing(loaded, samples, gptq, tmp_path, monkeypatch):
    import layerpress
    from layerpress import progress

    step = progress.Events.step

    def interrupting(self, done, total, name):
        step(self, done, total, name)
        if done == 2:
            assert any(tmp_path.rglob("*.unfinished"))
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(progress.Events, "step", interrupting)
    try:
        with pytest.raises(layerpress.InterruptedError, match="is removed; pass output=FOLDER"):
            layerpress.oneshot(loaded, dataset=rows_of(samples), recipe=gptq, progress=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(tmp_path.iterdir()) == []
