"""Classifiers: they say why an attempt failed."""
from .base import Classifier
