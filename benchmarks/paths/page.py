"""The parts of docs/others.md that the benchmarks write."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "others.md"


def replace_block(page, name, text):
    """Put ``text`` between the comments ``<!-- name -->`` and ``<!-- end of name -->``."""
    before, opened, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, closed, after = rest.partition(f"<!-- end of {name} -->")
    if not (opened and closed):
        raise ValueError(f"{page.name} has no block {name!r}: add its two comments.")
    page.write_text(f"{before}{opened}{text}\n{closed}{after}", encoding="utf-8")
