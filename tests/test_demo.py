"""The demo, as a person sees it."""

from onsphere import demo


def test_the_demo_shows_that_the_error_falls(capsys):
    demo.main()
    shown = capsys.readouterr().out
    for words in ("Diabetes", "Digits", "Keep only the rows", "The five least trusted predictions"):
        assert words in shown
    errors = [float(line.split("│")[3]) for line in shown.splitlines() if "█" in line and "%" not in line.split("│")[3]]
    assert len(errors) == 6
    assert errors[-1] < 0.8 * errors[0]
