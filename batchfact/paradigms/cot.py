"""Chain-of-thought prompting (Chen 2023, section 2.1, Table 1): the model writes its evidence, then answers.

The answer opens with `A: 1.`, the evidence follows, and ` 2.` asks for the label; the template says both.
"""

from __future__ import annotations

from batchfact.paradigms.contexts import Contexts
from batchfact.paradigms.program import Paradigm
from batchfact.paradigms.vanilla import make_vanilla
from batchfact.prompts.loader import PromptTemplate


def make_cot(template: PromptTemplate, *, contexts: Contexts) -> Paradigm:
    """One finding for the whole summary, with the evidence as its reasoning.

    Raises: ValueError if the template asks for no evidence.
    """
    if template.answer_cue is None:
        raise ValueError(f"prompt template {template.name} has no answer cue")
    return make_vanilla(template, contexts=contexts)
