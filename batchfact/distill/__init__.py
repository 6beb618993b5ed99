"""Training a small scorer: labelled pairs become examples, examples a tuned model, a tuned model a name for `run`."""
