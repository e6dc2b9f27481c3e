"""One run from its specification to its result: attack, train, and what they share."""
