"""Runs of the program in a terminal of 80 columns, and what is then on its screen."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading

from support import program

COLUMNS = 80


class TerminalRun:
    """The program with a terminal for stdout and stderr; `raw` is what it has written there."""

    def __init__(self, *arguments, **environment):
        own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self.raw = ""
        self._end = own
        self.process = subprocess.Popen([str(program.PROGRAM), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=theirs,
                                        stderr=theirs, env={**os.environ, "TERM": "xterm", **environment})
        os.close(theirs)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                piece = os.read(self._end, 4096)
            except OSError:  # the other end is closed
                return
            if not piece:
                return
            self.raw += piece.decode(errors="replace")

    def end(self, code, timeout=60):
        """Waits for the end; returns what was written."""
        assert self.process.wait(timeout=timeout) == code, self.raw
        self._reader.join(timeout=10)
        os.close(self._end)
        return self.raw


def screen(raw):
    """The lines that are left on a wide screen after cursor movements and erasures; without colours."""
    lines, row, column = [""], 0, 0
    for number, letter, text in re.findall(r"\x1b\[(\d*)([A-Za-z])|([^\x1b])", raw):
        if letter == "A":
            row = max(0, row - int(number or 1))
        elif letter == "K":
            lines[row] = ""
        elif text == "\r":
            column = 0
        elif text == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + 1:]
            column += 1
    return [line for line in lines if line.strip()]
