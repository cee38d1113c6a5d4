"""What all helpers share: one JSON request on stdin, JSON lines on stdout, one line on stderr when it fails."""
