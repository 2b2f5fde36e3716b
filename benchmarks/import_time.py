"""How much longer `import onsphere` takes than `import sklearn`, in fresh interpreters, alternating."""

import subprocess
import sys

import numpy as np
from _record import record


def seconds(module: str) -> float:
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


seconds("onsphere"), seconds("sklearn")  # the first import fills the disk cache
pairs = [(seconds("sklearn"), seconds("onsphere")) for _ in range(9)]
sklearn_median, onsphere_median = (float(np.median([pair[index] for pair in pairs])) for index in (0, 1))

record(
    "import_time",
    about="Seconds to import, median of 9 alternating fresh interpreters. The goal is at most 0.15 s more.",
    rows=[
        {"module": "sklearn", "seconds": sklearn_median},
        {"module": "onsphere", "seconds": onsphere_median},
        {"module": "difference", "seconds": onsphere_median - sklearn_median},
    ],
)
