"""Tables, pictures and CSV files on their own."""

import base64

import matplotlib
import numpy as np

from onsphere import plots
from onsphere.report.elements import draw_svg, make_download


def test_missing_values_are_empty_cells_in_the_file():
    file = make_download("A b/c", {"x": [None, np.nan, True], "y": [1, 2.5, "a,b"]})
    assert file.name == "a-b-c.csv"
    assert base64.b64decode(file.address.split(",")[1]) == b'x,y\n,1\n,2.5\nTrue,"a,b"\n'


def test_the_users_style_does_not_change_a_picture_or_get_changed():
    def draw(ax):
        plots.error_by_confidence(np.arange(50.0), np.linspace(0, 1, 50), ax=ax)

    first = draw_svg("boxes", draw)
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "red", "font.size": 30}):
        during = dict(matplotlib.rcParams)
        assert draw_svg("boxes", draw) == first
        assert dict(matplotlib.rcParams) == during
    assert dict(matplotlib.rcParams) == before
