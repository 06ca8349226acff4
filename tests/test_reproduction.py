"""The page of results: complete, self-contained, and the same bytes every time."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from lossnav.figures import fig1, fig2, fig3, transients
from lossnav.reproduction import PARTS, derivations, paths, reproduce


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    said = []
    return reproduce(out, (), said.append), said


def test_the_page_is_complete_and_needs_no_network(page):
    path, said = page
    html = path.read_text(encoding="utf-8")
    assert len([line for line in said if line.startswith("[")]) == len(PARTS)
    for part in PARTS:
        assert f'id="{part}"' in html
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', html)
    for link in re.findall(r'href="([^"#]+)"', html):
        assert (path.parent / link).stat().st_size > 0
    for formula in re.findall(r"<math.*?</math>", html, flags=re.S):
        ElementTree.fromstring(formula)


def test_same_bytes_every_time(page, tmp_path):
    path, _ = page
    reproduce(tmp_path, ("fig2", "transients"))
    for name in ("fig2.svg", "fig2.pdf", "fig2a.csv", "transients.svg", "transient_moved.csv"):
        assert (tmp_path / name).read_bytes() == (path.parent / name).read_bytes()


def test_unknown_part_and_unwritable_folder(tmp_path):
    with pytest.raises(ValueError, match=r"no part named 'fig22'\. Did you mean 'fig2'"):
        reproduce(tmp_path, ("fig22",))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written to"):
        reproduce(tmp_path / "file" / "results", ("fig2",))


def test_every_exact_path_is_approached_at_second_order():
    for row in paths.table():
        assert float(row["order"]) == pytest.approx(2.0, abs=0.05)
        assert float(row["800 steps off by"]) < 1e-4


def test_examples_are_derived_for_each_section():
    where = " ".join(example.where for example in derivations.examples())
    for section in ("Sec. 3", "Sec. 4", "Sec. 5", "Sec. 6", "App. C", "App. G", "App. H", "App. I"):
        assert section in where


def test_fig1_crosses_over_and_gradient_flow_does_not():
    table = fig1.data()["fig1b"]
    assert table["theta1"][-1] == pytest.approx(fig1.MINIMUM[0])
    assert table["flow theta1"][-1] == pytest.approx(-0.9304, abs=1e-3)


def test_fig2_rates():
    """Four times the curvature: four times the rate when discounted, twice when ballistic."""
    ratios = {name: column[-1] for name, column in fig2.data()["fig2d"].items()}
    assert ratios["ratio gamma=0"] == pytest.approx(2.0)
    assert 3.8 < ratios["ratio gamma=10"] < 4.0


def test_fig3_paths_end_where_they_should():
    tables = fig3.data()
    for letter, end in (("a", -0.5), ("b", -0.5), ("c", -0.5 * 4 / 104), ("d", -0.5 * 4 / 104)):
        assert tables[f"fig3{letter} end"]["theta2"][0] == pytest.approx(end, rel=1e-6)
        assert tables[f"fig3{letter}"]["theta2"][-1] == pytest.approx(end, abs=1e-6)


def test_variance_rises_to_a_new_balance_or_only_for_a_while():
    """App. I: a flatter basin raises v for good; a moved one raises it while the mean moves."""
    tables = transients.data()
    flatter, moved = tables["transient flatter"]["v"], tables["transient moved"]["v"]
    assert [flatter[0], moved[0]] == pytest.approx([0.25, 0.25])
    assert (np.diff(flatter) > -1e-9).all()
    assert flatter[-1] == pytest.approx(1.0, abs=1e-3)
    assert moved.max() > 0.4
    assert moved[-1] == pytest.approx(0.25, abs=1e-3)
