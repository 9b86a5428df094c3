"""Chat templates are understood by rendering them, whatever they are called."""

import pytest

from tests.models.tokenizers import (
    BOS_AND_TRIM,
    CHATML,
    COUNTS_TURNS,
    DROPS_THOUGHTS,
    HEADERS_ONLY,
    LAST_MESSAGE_ONLY,
    NO_BORDER,
    STRICT,
    bpe_tokenizer,
)
from turnpoint.errors import ModelError
from turnpoint.models.template import check_next_turn, encode, end_of_turn, next_turn, split_end_of_turn
from turnpoint.types import Message

ASK = Message(role="user", content="and then?")


@pytest.mark.parametrize("template", [CHATML, BOS_AND_TRIM, DROPS_THOUGHTS, STRICT])
def test_end_of_turn_is_what_the_template_puts_after_a_reply(template: str) -> None:
    tokenizer = bpe_tokenizer(template)
    assert end_of_turn(tokenizer) == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_a_template_without_an_end_of_turn_has_none() -> None:
    assert end_of_turn(bpe_tokenizer(HEADERS_ONLY)) is None


def test_split_end_of_turn_allows_blanks_but_no_words_before_the_special_token() -> None:
    tokenizer = bpe_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    blank, word = encode(tokenizer, " "), encode(tokenizer, "word")
    assert split_end_of_turn(tokenizer, [*blank, end, *word]) == ([*blank, end], word)
    assert split_end_of_turn(tokenizer, [*word, end]) == ([], [*word, end])
    assert split_end_of_turn(tokenizer, blank) == ([], blank)
    assert split_end_of_turn(tokenizer, []) == ([], [])


@pytest.mark.parametrize("template", [CHATML, BOS_AND_TRIM, DROPS_THOUGHTS, STRICT, HEADERS_ONLY])
def test_templates_that_can_continue_a_sampled_turn(template: str) -> None:
    tokenizer = bpe_tokenizer(template)
    check_next_turn(tokenizer, thinking=False)
    assert "and then?" in next_turn(tokenizer, ASK, thinking=False)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (COUNTS_TURNS, "depending on earlier ones"),
        (LAST_MESSAGE_ONLY, "drops or changes an earlier reply"),
        (NO_BORDER, "no token border"),
    ],
)
def test_templates_that_cannot_are_refused_with_the_reason(template: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_next_turn(bpe_tokenizer(template), thinking=False)


def test_what_follows_a_reply_may_hold_the_words_of_the_probe() -> None:
    message = Message(role="user", content="turnpointreply turnpointquestion")
    text = next_turn(bpe_tokenizer(), message, thinking=False)
    assert text == (
        "<|im_end|>\n<|im_start|>user\nturnpointreply turnpointquestion<|im_end|>\n<|im_start|>assistant\n"
    )
