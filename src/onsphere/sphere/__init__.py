"""The mathematics: targets to points on a sphere and back, and scores of how far a prediction misses it.

Every embedding has the same few names: `fit(y)` learns centre and scale (or the classes), `embed(y)` turns targets
into directions of norm 1 and magnitudes, `decode(outputs)` turns predicted points back into targets, and
`sigma(outputs)` reads the noise off them. Targets are standardised per output first and decoded to their own unit.
"""

from onsphere.sphere import geometry, scores
from onsphere.sphere.domain import Domain
from onsphere.sphere.embeddings import Duplicate, Lift, Polar, RegressionEmbedding
from onsphere.sphere.onehot import OneHot
from onsphere.sphere.torus import Torus

__all__ = ["Domain", "Duplicate", "Lift", "OneHot", "Polar", "RegressionEmbedding", "Torus", "geometry", "scores"]
