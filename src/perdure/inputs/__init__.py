"""From what people have on disk or in memory to rows and labels."""

from perdure.inputs.pictures import PictureBackbone
from perdure.inputs.sources import Reader
from perdure.inputs.texts import TextBackbone

__all__ = ["PictureBackbone", "Reader", "TextBackbone"]
