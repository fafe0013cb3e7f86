"""CGPFL: personal models near one of K contexts, which are means of their clients.

Keys of an instruction's config, by which the device descends the Moreau envelope.
"""

PROCEDURE = "cgpfl"
PERSONAL_STEPS = "personal-steps"  # gradient steps of the personal model for each mini-batch
CONTEXT_STEP = "context-step"  # η λ, the part of the way to the personal model that the context then moves
