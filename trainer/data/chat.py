"""Chats for supervised fine-tuning: records become messages.

A record is `{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}`, with the roles
system, user and assistant. Other common forms are also read: `conversations` with `from` and `value`, `prompt` and
`completion` as texts or as messages, Alpaca's `instruction`, `input` and `output`, other names for the roles, and content
that is split into text parts. `trainer.data.templates` turns a chat into tokens.

A record with an unknown field is refused, because the author may have used that field to say that a model must not learn a
message, or must see something. `COUNTS` and `IS_EXCLUDED` exclude messages from the loss, `METADATA` does not concern the
model, and `UNSUPPORTED` lists the fields that runs cannot express. Null or empty fields count as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.data.templates import LEARNT, ROLES, Message

MAX_MESSAGES = 1 << 12
MAX_CONTENT_CHARACTERS = 1 << 24
OTHER_ROLES = {"developer": "system", "human": "user", "gpt": "assistant", "model": "assistant"}

COUNTS = frozenset(
    "weight train training trainable train_on_turn loss compute_loss calculate_loss include_in_loss learn".split()
)
"""Fields whose value 0 or false excludes an assistant message from the loss; in a record, the whole chat."""
IS_EXCLUDED = frozenset("masked mask mask_loss ignore exclude excluded skip no_loss".split())
"""Fields whose value 1 or true excludes the message or the chat in the same way."""
UNSUPPORTED = {
    **dict.fromkeys("tool_calls function_call tool_call_id tools functions tool_choice".split(), "tools"),
    **dict.fromkeys("image images image_url video videos audio audios file files".split(), "images, audio and files"),
    **dict.fromkeys(
        "reasoning_content reasoning reasoning_details thinking thoughts chain_of_thought".split(),
        "thoughts separate from the answer",
    ),
    **dict.fromkeys("name".split(), "names of speakers"),
    **dict.fromkeys("prefix suffix continue_final_message".split(), "messages that are begun for the model"),
    **dict.fromkeys(
        "chat_template chat_template_kwargs template enable_thinking add_generation_prompt".split(), "templates of records"
    ),
    **dict.fromkeys("documents context contexts".split(), "documents beside the messages"),
    **dict.fromkeys(
        "train_detail training_detail loss_scale loss_weight weights loss_mask completion_mask assistant_masks".split(),
        "weights of parts of a message",
    ),
    **dict.fromkeys("chosen rejected preference kto_tag rank ranking".split(), "preferences"),
    **dict.fromkeys("refusal".split(), "refusals separate from the answer"),
    **dict.fromkeys("input_ids labels attention_mask token_ids".split(), "texts that are already tokens"),
}
"""Unsupported fields, with the name of the feature for the error."""
METADATA = frozenset(
    "id ids _id idx index uuid hash number row key sample_id prompt_id conversation_id chat_id message_id parent_id "
    "user_id session_id source sources source_id dataset dataset_name data_source origin subset split version "
    "revision category categories subcategory tag tags topic topics domain subject task task_type task_name type "
    "style genre keywords language lang languages locale license author authors annotator created created_at "
    "updated_at timestamp date time url link title score scores rating quality difficulty reward length num_tokens "
    "token_count tokens n_tokens turns num_turns n_turns turn generator model_name annotations metadata meta extra "
    "extra_info info notes note comment comments parallel_tool_calls model".split()
)
"""Fields that do not concern the model. A data set can put any other data into `metadata`."""
TEXTS = frozenset("prompt completion instruction output".split())
"""Fields that count as present even if their text is empty."""
FORMS = (
    "a chat is a record with a list of 1 to {most} messages in the field messages or conversations, or with prompt and "
    "completion, or with instruction and output"
)


def messages_of(record: Any) -> list[Message]:
    """Return the messages of a record, at least one of them the assistant's.

    Raises ValueError with one sentence that names the field, for a record that is not a chat or that runs do not support.
    """
    if not isinstance(record, Mapping):
        raise ValueError(FORMS.format(most=MAX_MESSAGES))
    fields = _given(record, "the record")
    listed = _listed(fields)
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_MESSAGES:
        raise ValueError(FORMS.format(most=MAX_MESSAGES))
    excluded = _is_excluded(fields, "the record")
    _check_known(fields, "the record", METADATA)
    found = listed_messages(listed)
    if all(message.role != LEARNT for message in found):
        raise ValueError("a chat has no message of the assistant, so there is nothing to learn from it")
    return [message._replace(excluded=True) for message in found] if excluded else found


def listed_messages(listed: list[Any]) -> list[Message]:
    """Return the messages in a list of any length.  Raises ValueError with one sentence that names the message."""
    return [_message(number, message) for number, message in enumerate(listed, 1)]


def _given(record: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Return the fields that are not null or empty.  Raises ValueError for fields that runs do not support."""
    fields = {
        name: value for name, value in record.items() if value is not None and (name in TEXTS or value not in ("", [], {}))
    }
    for name, value in fields.items():
        if name in UNSUPPORTED and value is not False:
            raise ValueError(
                f"{whose} has the field {name}, and runs do not support {UNSUPPORTED[name]}; leave the chat out, or remove "
                "the field if the chat makes sense without it"
            )
    return {name: value for name, value in fields.items() if name not in UNSUPPORTED}


def _listed(fields: dict[str, Any]) -> Any:
    """Remove the messages, under any of their names, from a record's fields, and return them after the system prompt."""
    found = [name for name in ("messages", "conversations", "completion", "output") if name in fields]
    if len(found) != 1:
        if found:
            raise ValueError(
                f"the record has {' and '.join(found)}, but only one of them can be the chat; remove the others"
            )
        return None
    form, listed = found[0], fields.pop(found[0])
    if form == "completion":
        listed = _asked_and_answered(fields.pop("prompt", None), listed)
    elif form == "output":
        listed = _alpaca(fields, listed)
    else:
        _check_repeated(fields.pop("prompt", None), listed)
    system = fields.pop("system" if "system" in fields else "system_prompt", None)
    if system is not None and isinstance(listed, list):
        if any(isinstance(message, Mapping) and _role(message) == "system" for message in listed):
            raise ValueError(
                "the record has both a field with the system prompt and a message of the system; keep only one of them"
            )
        listed = [{"role": "system", "content": system}, *listed]
    return listed


def _check_repeated(prompt: Any, listed: Any) -> None:
    """Raise ValueError unless a prompt beside the messages repeats their first question, as it does in some data sets."""
    asked = prompt[-1] if isinstance(prompt, list) and prompt else prompt
    text = asked.get("content", asked.get("value")) if isinstance(asked, Mapping) else asked
    first = next((each for each in listed if isinstance(each, Mapping) and _role(each) == "user"), {}) if listed else {}
    question = first.get("content", first.get("value"))
    if prompt is None or not isinstance(listed, list) or not isinstance(question, str):
        return
    if not isinstance(text, str) or " ".join(text.split()) not in " ".join(question.split()):
        raise ValueError(
            "the record has the fields prompt and messages, but the prompt is not their first question; move the prompt "
            "into the messages, or remove it"
        )


def _asked_and_answered(asked: Any, answered: Any) -> Any:
    if asked is None:
        return None
    if isinstance(asked, list) and isinstance(answered, list):
        return [*asked, *answered]
    return [{"role": "user", "content": asked}, {"role": LEARNT, "content": answered}]


def _alpaca(fields: dict[str, Any], output: Any) -> Any:
    """Return Alpaca's messages: first `history`, pairs of question and answer, then `instruction` with `input` below it."""
    instruction, given, history = (fields.pop(name, None) for name in ("instruction", "input", "history"))
    fields.pop("text", None)  # the published data set repeats everything in this field
    if instruction is None:
        return None
    if not isinstance(instruction, str) or not isinstance(given, str | None):
        raise ValueError("the field instruction or input is not text")
    if not isinstance(history, list | None) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history or ()):
        raise ValueError("the field history is not a list of pairs")
    turns = [*(history or ()), [f"{instruction}\n{given}" if given else instruction, output]]
    return [message for asked, answered in turns for message in _asked_and_answered(asked, answered)]


def _role(message: Mapping[str, Any]) -> Any:
    role = message.get("role", message.get("from"))
    return OTHER_ROLES.get(role, role) if isinstance(role, str) else role


def _message(number: int, message: Any) -> Message:
    whose = f"message {number} of a chat"
    if not isinstance(message, Mapping):
        raise ValueError(f"{whose} is not a record with role and content")
    role = _role(message)
    if role not in ROLES:
        said = message.get("role", message.get("from"))
        raise ValueError(f"the role of {whose} is {said!r:.40}, but must be one of {', '.join(ROLES)}")
    fields = _given(message, whose)
    if len({"role", "from"} & set(fields)) > 1 or len({"content", "value"} & set(message)) > 1:
        raise ValueError(f"{whose} gives its role or its content in two fields; keep only role and content")
    excluded = _is_excluded(fields, whose, role)
    _check_known(fields, whose, METADATA | {"role", "from", "content", "value"})
    return Message(role, _content(message, whose), excluded)


def _content(message: Mapping[str, Any], whose: str) -> str:
    content = message.get("content", message.get("value"))
    if content is None:
        raise ValueError(f"the content of {whose} is {'null' if {'content', 'value'} & set(message) else 'missing'}")
    if isinstance(content, list) and content:
        if not all(_is_text(part) for part in content):
            raise ValueError(f'the content of {whose} has parts other than {{"type": "text", "text": …}}')
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or len(content) > MAX_CONTENT_CHARACTERS:
        raise ValueError(f"the content of {whose} is not a text of at most {MAX_CONTENT_CHARACTERS} characters")
    if not content.isascii():
        try:
            content.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the content of {whose} has half a character at place {error.start + 1} (\\u{ord(content[error.start]):x} "
                "without its other half); mend or remove it"
            ) from error
    return content


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and set(part) == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _is_excluded(fields: dict[str, Any], whose: str, role: str = LEARNT) -> bool:
    """Remove the fields that include or exclude a message. Return True if one of them excludes the message."""
    excluded = False
    for name in sorted((COUNTS | IS_EXCLUDED) & set(fields)):
        value = fields.pop(name)
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise ValueError(f"the field {name} of {whose} is {value!r:.40}, but must be 0 or 1, or false or true")
        counts = bool(value) == (name in COUNTS)
        if counts and role != LEARNT:
            raise ValueError(
                f"the field {name} of {whose} asks to learn messages of the {role}, but runs learn only messages of the "
                "assistant; remove the field"
            )
        excluded |= not counts
    return excluded


def _check_known(fields: Mapping[str, Any], whose: str, known: frozenset[str]) -> None:
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ValueError(
            f"{whose} has the unknown field {unknown[0]!r:.60}, which may change what is learned; remove it, or move it "
            "into metadata, which is ignored"
        )
