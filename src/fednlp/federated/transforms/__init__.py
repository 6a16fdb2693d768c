"""Transforms of updates and weights on their way: smaller messages, bounded updates; they compose."""

from fednlp.federated.links import Chain
from fednlp.federated.message import Shapes
from fednlp.federated.transforms.base import PerTensor, RngKey, Tensors, Transform
from fednlp.federated.transforms.chain import feedback, make_chain
from fednlp.federated.transforms.clip import Clip
from fednlp.federated.transforms.half import Half
from fednlp.federated.transforms.quantise import Quantise
from fednlp.federated.transforms.sign import Sign
from fednlp.federated.transforms.sparse import RandomK, TopK

__all__ = [
    "Chain",
    "Clip",
    "Half",
    "PerTensor",
    "Quantise",
    "RandomK",
    "RngKey",
    "Shapes",
    "Sign",
    "Tensors",
    "TopK",
    "Transform",
    "feedback",
    "make_chain",
]
