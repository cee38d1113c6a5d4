"""Finds the native parts of an installed Layerpress that were built for its torch. The package `layerpress` is not imported for that, because
it loads torch's libraries, which takes longer than the command needs for `--help`."""
