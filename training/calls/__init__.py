"""A LoRA adapter that teaches SmolLM2 how many calls a question wants: made questions, plans, and a small trainer."""
