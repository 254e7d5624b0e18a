"""Draft sources behind one protocol."""

from scheduler.proposers.base import Proposer
from scheduler.proposers.feature import FeatureProposer
from scheduler.proposers.model import ModelProposer
from scheduler.proposers.ngram import NgramProposer

__all__ = ["FeatureProposer", "ModelProposer", "NgramProposer", "Proposer"]
