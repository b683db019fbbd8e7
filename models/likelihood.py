"""How likely a model is to say given texts after its prompts: one `Reading` of token ids, over all their spellings."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch

from mmprobe.models.loading import Model
from mmprobe.models.prompt import Chat, decode_tokens
from mmprobe.models.reading import PrefixStore, read_chats, why_not_shared

log = logging.getLogger("mmprobe")

Spelling = tuple[int, ...]
"""Token ids of one way to write a text."""


class Spellings:
    """The ways in which a tokenizer can write a text at the beginning of an answer.

    Args:
        model: the model whose tokenizer it is.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> [model.tokenizer.decode(ids) for ids in Spellings(model).of("yes")]
        ['yes', 'Yes', ' yes', ' Yes']
    """

    def __init__(self, model: Model):
        self.model = model

    @cached_property
    def _tokens(self) -> Mapping[str, Sequence[int]]:
        """The tokens that are a text alone, by the text without the spaces around it."""
        tokens = defaultdict[str, list[int]](list)
        special = set(self.model.tokenizer.all_special_ids)
        known = [number for number in range(len(self.model.tokenizer)) if number not in special]
        for number, text in zip(known, decode_tokens(self.model, np.array(known)), strict=True):
            tokens[text.strip()].append(number)
        return tokens

    @cached_property
    def _tokens_of_any_case(self) -> Mapping[str, Sequence[int]]:
        tokens = defaultdict[str, list[int]](list)
        for text, numbers in self._tokens.items():
            tokens[text.casefold()] += numbers
        return tokens

    def of(self, text: str, *, exact: bool = False) -> list[Spelling]:
        """Return the spellings of a text: as it stands, with a capital or a small initial, each also after a space.

        To these come all tokens that are the text alone, in any case.

        Args:
            exact: keep the case, as of an option's letter.
        """
        initials = (
            {text: None}
            if exact
            else {text: None, text[:1].lower() + text[1:]: None, text[:1].upper() + text[1:]: None}
        )
        encoded = [
            self.model.tokenizer(space + each, add_special_tokens=False)["input_ids"]
            for space in ("", " ")
            for each in initials
        ]
        alone = self._tokens[text] if exact else self._tokens_of_any_case[text.casefold()]
        return list(dict.fromkeys(tuple(ids) for ids in [*encoded, *([number] for number in alone)] if ids))


def score_spellings(
    model: Model,
    chats: Sequence[Chat],
    spellings: Sequence[Sequence[Spelling]],
    batch_size: int = 1,
    prefixes: PrefixStore | None = None,
) -> list[dict[Spelling, float]]:
    """Return the log-probability of each spelling as the beginning of the answer to its chat, in nat.

    It is the sum of the log-probabilities of the spelling's tokens, each after the prompt and the tokens before it, as
    lm-eval-harness scores a continuation. Spellings that differ in their last token alone are read together.

    Args:
        chats: all of them with images, or none.
        spellings: of each chat, token ids.
        batch_size: the most rows of a pass; halved where memory does not suffice.
        prefixes: what chats with the same images share, as `share_prefixes` makes it; None to read whole prompts.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.models.prompt import build_chat
        >>> from mmprobe.samples import Sample
        >>> model, chat = load_model("tiny-spd", device="cpu"), build_chat(Sample(id="a", question="Is there a star?"))
        >>> list(score_spellings(model, [chat], [[(7,), (8, 9)]])[0])
        [(7,), (8, 9)]
    """
    rows: dict[tuple[int, Spelling], list[Spelling]] = defaultdict(
        list
    )  # by chat and all tokens but the last
    for number, own in enumerate(spellings):
        for spelling in own:
            rows[number, spelling[:-1]].append(spelling)
    scores: list[dict[Spelling, float]] = [{} for _ in chats]
    pending = list(rows.items())
    while pending:
        part = pending[:batch_size]
        try:
            reading = read_chats(
                model, [chats[number] for (number, _), _ in part], [own[0] for _, own in part], prefixes
            )
            predictions = reading.predict()
        except (torch.OutOfMemoryError, MemoryError):
            if batch_size == 1:
                raise
            batch_size //= 2
            log.warning("out of memory; continuing with %d spellings at a time", batch_size)
            continue
        for ((number, _), own), said in zip(part, predictions, strict=True):
            before = said.logprobs[:-1].double().sum().item()
            last = said.last[[spelling[-1] for spelling in own]].double().tolist()
            scores[number] |= {spelling: before + each for spelling, each in zip(own, last, strict=True)}
        pending = pending[batch_size:]
    return [{each: found[each] for each in own} for found, own in zip(scores, spellings, strict=True)]


def share_prefixes(model: Model, chats: Sequence[Chat]) -> PrefixStore | None:
    """Return an empty store for what the prompts of chats share; None where they are read whole."""
    shares = why_not_shared(model) is None and model.has_plain_logits and all(chat.images for chat in chats)
    return PrefixStore(model, frozenset(), keeps_states=False) if shares else None


def sum_spellings(
    scores: Mapping[Spelling, float], spellings: Mapping[str, Sequence[Spelling]]
) -> dict[str, float]:
    """Return the log-probability that an answer begins with any spelling of each text, in nat.

    An answer that begins with several spellings counts for the longest alone: after *A* for the letter, *A cat* may be the
    text of another option. A spelling that two texts share counts for none.

    Args:
        scores: the log-probability of each spelling.
        spellings: by text, its spellings.

    Example:
        >>> texts = {"A": [(1,)], "a cat": [(1, 2)]}
        >>> {name: round(float(np.exp(score)), 2) for name, score in sum_spellings({(1,): np.log(0.5), (1, 2): np.log(0.2)}, texts).items()}
        {'A': 0.3, 'a cat': 0.2}
    """
    owners: dict[Spelling, set[str]] = defaultdict(set)
    for name, own in spellings.items():
        for spelling in own:
            owners[spelling].add(name)
    totals = {name: -np.inf for name in spellings}
    for spelling, names in owners.items():
        if len(names) > 1:
            continue
        longer = [each for each in owners if len(each) > len(spelling) and each[: len(spelling)] == spelling]
        nearest = [
            each
            for each in longer
            if not any(each[: len(other)] == other for other in longer if other != each)
        ]
        rest = sum(
            np.exp(scores[each] - scores[spelling]) for each in nearest
        )  # of the answers that begin with it
        if rest < 1:
            totals[next(iter(names))] = np.logaddexp(
                totals[next(iter(names))], scores[spelling] + np.log1p(-rest)
            )
    return {name: float(total) for name, total in totals.items()}
