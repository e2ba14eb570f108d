"""Chances by features: ridge logistic regressions on the features of many texts, all of one fold with one matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .ranking import Odds

Floats = NDArray[np.float64]
_RIDGE, _WORD_RIDGE = 10.0, 1.0
"""Weights of the squared coefficients, of features and of words: what tells nothing gets none."""
_LEAST = 2
"""Minimum number of texts of a fold that contain a word."""
_MOST_ODDS = 6.0
_SMALL = 5e-4
"""Weights of words that are left out: there are hundreds."""


class TextTable:
    """Features of texts as a matrix: a row for each text, a column for each feature that any has."""

    def __init__(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Words (`word.…`) that a text lacks count 0; any other feature is one that all have."""
        self.names = list(dict.fromkeys(name for row in rows for name in row))
        places = {name: place for place, name in enumerate(self.names)}
        self.values: Floats = np.zeros((len(rows), len(self.names)))
        for number, row in enumerate(rows):
            self.values[number, [places[name] for name in row]] = list(row.values())
        self.word = np.array([name.startswith("word.") for name in self.names], dtype=bool)


class ChanceFold:
    """The scale of the features over some rows of a table, and regressions on them."""

    def __init__(self, table: TextTable, rows: Sequence[int], by_features: bool) -> None:
        """Without `by_features` a chance is the same for all texts."""
        self.table = table
        values = table.values[list(rows)]
        means, deviations = values.mean(axis=0), values.std(axis=0)
        words, met = table.word, (values > 0).sum(axis=0)
        # A word counts for more the fewer texts contain it (idf), and all words of a text for about as much as one
        # other feature.
        rarity = 1 + np.log((len(values) + 1) / (met + 1))
        size = np.sqrt(max(1e-12, float(((values * rarity)[:, words] ** 2).sum(axis=1).mean()))) if words.any() else 1.0
        self._means: Floats = np.where(words, 0.0, means)
        self._scale: Floats = np.where(words, size / rarity, deviations)
        told = np.where(words, met >= _LEAST, deviations > 1e-9) & by_features
        self._told = np.flatnonzero(told)
        self.scale = {
            table.names[place]: (round(float(self._means[place]), 9), round(float(self._scale[place]), 9))
            for place in self._told
        }
        self._design = self._standard(values)
        self._row = {row: place for place, row in enumerate(rows)}
        self._penalty: Floats = np.where(words[self._told], _WORD_RIDGE, _RIDGE)
        self._penalty = np.concatenate([[1e-3], self._penalty])
        # The curve of the logistic loss is nowhere above a quarter of this (Boehning and Lindsay, 1988): one inverse
        # serves all regressions of the fold, where Newton's method needs one for each step of each.
        curve = self._design.T @ self._design / 4 + np.diag(self._penalty)
        self._inverse: Floats = np.linalg.inv(curve).astype(np.float64)

    def fit(self, rows: Sequence[int], right: Sequence[float]) -> Floats:
        """Return bias and weights of a logistic regression on rows of the fold; `right` may lie between 0 and 1."""
        design, y = self._design[[self._row[row] for row in rows]], np.asarray(right, dtype=np.float64)
        weights: Floats = np.zeros(design.shape[1])
        for _ in range(300):
            chance = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
            step = self._inverse @ (design.T @ (y - chance) - self._penalty * weights)
            weights = weights + step
            if np.abs(step).max() < 1e-5:
                break
        weights[0] = np.clip(weights[0], -_MOST_ODDS, _MOST_ODDS)
        return weights

    def chances(self, weights: Floats, rows: Sequence[int]) -> Floats:
        """Return the chances of rows of the table, of this fold or not."""
        return 1 / (1 + np.exp(-np.clip(self._standard(self.table.values[list(rows)]) @ weights, -40, 40)))

    def odds(self, weights: Floats) -> Odds:
        """Return a regression as a route keeps it."""
        named = {
            self.table.names[place]: round(float(weight), 5)
            for place, weight in zip(self._told, weights[1:], strict=True)
            if not self.table.word[place] or abs(weight) >= _SMALL
        }
        return Odds(bias=round(float(weights[0]), 6), weights=named)

    def _standard(self, values: Floats) -> Floats:
        standard = (values[:, self._told] - self._means[self._told]) / self._scale[self._told]
        return np.column_stack([np.ones(len(values)), standard])
