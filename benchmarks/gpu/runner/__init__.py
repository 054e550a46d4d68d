"""Steps, their results, and the plan of a run."""
