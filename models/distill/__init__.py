"""Making drafts: the target writes text, a few layers learn to foretell it.

Owns everything from written text to a draft's folder. `python -m models.distill` is its program. Nothing here is needed
to run a draft (`models.shallow`).
"""
