"""Fit models on tables with columns of all kinds, and assess files with them.

>>> import pandas as pd
>>> from onsphere.table import describe_columns
>>> [column.kind for column in describe_columns(pd.DataFrame({"size": [1.5, 2.0, 2.5], "shop": ["a", "b", "a"]}))]
['number', 'category']
"""

from onsphere.evaluation import evaluate
from onsphere.table.backbone_choice import BACKBONES
from onsphere.table.columns import Column, describe_columns
from onsphere.table.compare import compare_table
from onsphere.table.encoder import TableEncoder
from onsphere.table.files import read_batches, read_table, to_frame
from onsphere.table.fit import TableFit, fit_table
from onsphere.table.predict import predict_file

__all__ = [
    "BACKBONES",
    "Column",
    "TableEncoder",
    "TableFit",
    "compare_table",
    "describe_columns",
    "evaluate",
    "fit_table",
    "predict_file",
    "read_batches",
    "read_table",
    "to_frame",
]
