"""Names of the tokens that templates write between messages.

No text may become one of them, whatever the tokenizer: the author of a task could otherwise put words into the assistant's
mouth.  The list is closed, so that a `tokenizer.json` can be checked before a template is chosen.
"""

from __future__ import annotations


class Mark(str):
    """Name of a special token in a template."""


TEXT_BEGIN = Mark("<|begin_of_text|>")
TURN_BEGIN = Mark("<|im_start|>")
TURN_END = Mark("<|im_end|>")
HEADING_BEGIN = Mark("<|start_header_id|>")
HEADING_END = Mark("<|end_header_id|>")
MESSAGE_END = Mark("<|eot_id|>")
MARKS = (TEXT_BEGIN, TURN_BEGIN, TURN_END, HEADING_BEGIN, HEADING_END, MESSAGE_END)
"""All marks of all templates."""
