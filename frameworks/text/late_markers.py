"""Let a tokenizer read the markers of queries and documents."""

from tokenizers import AddedToken, Tokenizer

from frameworks.text.late_interaction import LateInteraction


def register_markers(tokenizer: Tokenizer, late: LateInteraction) -> None:
    """Let the tokenizer read each marker of its vocabulary as one token.

    A marker that is no token is read as text.
    """
    for marker in late.markers:
        for spelling in (marker, marker.split(None, 1)[0]):
            if tokenizer.token_to_id(spelling) is not None:
                if tokenizer.encode(spelling, add_special_tokens=False).tokens != [spelling]:
                    tokenizer.add_special_tokens([AddedToken(spelling, normalized=False, special=True)])
                break
