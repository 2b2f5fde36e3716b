"""How many files a row of a CSV file passes through on its way through `onsphere predict`."""

import sys
from pathlib import Path

import onsphere
from onsphere.cli.predict_command import predict
from onsphere.table import model_file

SOURCE = Path(onsphere.__file__).parent
ASIDE = {"_internal", "sphere"}  # checks that every function makes, and pure formulas


def list_entered_files(work):
    """Return the files of onsphere in which a function is called, in order; imports do not count."""
    entered = {}

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and path.is_relative_to(SOURCE):
            entered[path.relative_to(SOURCE)] = None

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return list(entered)


def test_a_row_passes_through_at_most_sixteen_files(tmp_path, house_model, houses, monkeypatch, capfd):
    model, data = house_model / "model.onsphere", tmp_path / "one.csv"
    houses(1, 1).to_csv(data, index=False)
    loaded = model_file.load_table_model(model)
    # Once for a file, however many rows it has.
    monkeypatch.setattr(model_file, "load_table_model", lambda path: loaded)
    predict(model, str(data))  # imports what is imported late
    files = list_entered_files(lambda: predict(model, str(data)))
    walk = [str(file) for file in files if file.parts[0] not in ASIDE]
    # Twelve from the command to the calibration, three for the frames, whose formulas are in kernel and scores, and the
    # distribution, which keeps prices above 0.
    assert len(walk) <= 16, walk
    assert len(files) <= 22, files
    assert {f"models/{name}.py" for name in ("frames", "noise", "novelty")} <= set(walk)
    assert "table/cells.py" in walk
    assert capfd.readouterr().out.count("\n") == 4
