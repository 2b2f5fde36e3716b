"""Name the options of the command line in messages of the library, which speaks of parameters."""

from __future__ import annotations

import re

__all__ = ["FLAG_WORDS", "name_flags"]

# What the library says, as a regular expression, and what that is at the command line.
FLAG_WORDS = {
    r"choose the task (regression|classification)": r"choose --task \1",
    r"say that (.+?) is the time,": r"add --time \1,",
    r"Say that the column is a number,": "Add --number NAME,",
    r"or a category, to predict classes": "or --category NAME, to predict classes",
    r"pass it when the file is read": "pass it by --delimiter",
    r"pass its delimiter": "pass its --delimiter",
    r"Add a tolerance,": "Add --tolerance,",
    r"Leave the tolerance out": "Leave --tolerance out",
    r"file written by save": "model file of onsphere fit --save",
    r"file written by export_onnx": "graph of onsphere export",
    r"Pass engine='ray'": "Add --engine ray",
    r"or skip such files": "or add --on-error skip",
    r"write_report needs": "A report needs",
    r"fit with domain=None": "fit with --domain none",
    r"say domain='positive'": "choose --domain positive",
    r"domain='(positive|count)' was asked for": r"--domain \1 was asked for",
    r"Got calibration='cv', which has none\. Choose 'split'": "Got --calibration cv, which has none. Choose split",
    r"leave groups, time and calibration out": "leave --groups, --time and --calibration out",
}


def name_flags(message: str) -> str:
    """Return a message of the library as the command line says it.

    Examples
    --------
    >>> name_flags("grade has 3 different whole numbers; choose the task regression if they are amounts")
    'grade has 3 different whole numbers; choose --task regression if they are amounts'
    """
    for words, flag in FLAG_WORDS.items():
        message = re.sub(words, flag, message)
    return message
