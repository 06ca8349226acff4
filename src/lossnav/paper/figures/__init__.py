"""The figures of the page, each a `style.PaperFigure` with ``data`` and ``draw``."""
