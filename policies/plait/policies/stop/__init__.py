"""Stop rules: policies that end a vote early. A plugin has its file's name, or is listed in `SHARED`."""

SHARED = {
    "adaptive-consistency": "votes:AdaptiveConsistency",
    "cges": "confidence:CGES",
    "confident": "confidence:Confident",
    "esc": "votes:ESC",
    "first-finish": "votes:FirstFinish",
    "futility": "votes:Futility",
    "saturation": "confidence:Saturation",
    "semantic-entropy": "confidence:SemanticEntropy",
    "sprt": "votes:SPRT",
}
"""`module:Class` of the plugins that share a file, by name."""
