"""Target <-> sphere.

Every embedding has the same few names: `fit(y)` learns centre and scale (or the classes), `embed(y)` turns targets
into directions of norm 1 and magnitudes, `decode(outputs)` turns what a model says back into targets, and
`sigma(outputs)` reads the noise off it. Targets are standardised per output first and decoded to their own unit.
"""

from onsphere.sphere.embedding import RegressionEmbedding
from onsphere.sphere.onehot import OneHot
from onsphere.sphere.polar import Duplicate, Lift, Polar
from onsphere.sphere.torus import Torus

__all__ = ["Duplicate", "Lift", "OneHot", "Polar", "RegressionEmbedding", "Torus"]
