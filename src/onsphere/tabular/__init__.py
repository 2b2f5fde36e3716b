"""From a file with columns to a model with an uncertainty, and back to a file.

>>> import pandas as pd
>>> from onsphere.tabular import describe_columns
>>> [column.kind for column in describe_columns(pd.DataFrame({"size": [1.5, 2.0, 2.5], "shop": ["a", "b", "a"]}))]
['number', 'category']
"""

from onsphere.tabular.backbones import BACKBONES
from onsphere.tabular.columns import Column, describe_columns
from onsphere.tabular.comparing import compare_table
from onsphere.tabular.encoding import TableEncoder
from onsphere.tabular.evaluation import evaluate
from onsphere.tabular.files import read_batches, read_table, to_frame
from onsphere.tabular.fitting import TableFit, fit_table
from onsphere.tabular.predicting import predict_file

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
