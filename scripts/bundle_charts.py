"""Writes the script that draws the charts on pages about runs: Vega-Lite and what it needs, as the package vl-convert-python
bundles it.

    python scripts/bundle_charts.py charts.js

Does nothing if the file is that of the package's version. Without the package there is no file, and no page is drawn.
"""

import os
import sys
from importlib import metadata
from pathlib import Path

NOTICE = Path(__file__).resolve().parents[1] / "python" / "layerpress_report" / "charts_notice.txt"


def main():
    script = Path(sys.argv[1])
    try:
        version = metadata.version("vl-convert-python")
    except metadata.PackageNotFoundError:
        script.unlink(missing_ok=True)
        print("pages about runs are not drawn by this build: the Python package vl-convert-python is missing")
        return
    head = f"/* from vl-convert-python {version}\n\n{NOTICE.read_text()}*/\n"
    if script.exists() and script.read_text().startswith(head):
        return
    import vl_convert

    unfinished = script.with_suffix(".unfinished")
    unfinished.write_text(head + vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    os.replace(unfinished, script)


if __name__ == "__main__":
    main()
