"""Recurrent models in the Hugging Face family: (Bi)LSTM for classification, tagging and language modelling.

Importing this module makes transformers' auto classes know them, so that
``AutoModelForSequenceClassification.from_pretrained(folder)`` loads what a run has saved.
"""

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from fednlp.models.registry import LSTM


@strict
class LstmConfig(PreTrainedConfig):  # type: ignore[misc]
    """Sizes of an LSTM.

    Attributes:
        vocab_size: Number of tokens.
        embedding_size: Width of the word embedding.
        hidden_size: Width of the state, of each direction.
        num_hidden_layers: Layers on top of each other, at least 1.
        bidirectional: Whether classification and tagging read both ways; a language model never does.
        dropout: After the embedding, between layers and before the head, in [0, 1).
        pooling: How a text's states become one for classification: ``"max"`` or ``"mean"``.
        initializer_range: Standard deviation of the embedding and the head at the start.
        pad_token_id: Its embedding is zero and stays so.
    """

    model_type = LSTM

    vocab_size: int = 8000
    embedding_size: int = 128
    hidden_size: int = 256
    num_hidden_layers: int = 1
    bidirectional: bool = True
    dropout: float | int = 0.1
    pooling: str = "max"
    initializer_range: float = 0.1
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    def validate_sizes(self) -> None:
        """Check what cannot be built.

        Raises:
            ValueError: A size, the dropout or the pooling is out of its range.
        """
        sizes = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers")
        small = [name for name in sizes if getattr(self, name) < 1]
        if small:
            raise ValueError(f"{', '.join(small)} must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), not {self.dropout}")
        if self.pooling not in ("max", "mean"):
            raise ValueError(f'pooling must be "max" or "mean", not "{self.pooling}"')
        if self.tie_word_embeddings:
            raise ValueError("an LSTM's embedding and output are not tied: leave tie_word_embeddings out")


class LstmPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Base class of the LSTM models: their configuration and the initial weights."""

    config_class = LstmConfig
    base_model_prefix = "lstm"


class LstmModel(LstmPreTrainedModel):
    """Embedding and LSTM layers; padding, which must be at the end, changes no state.

    Args:
        both_ways: Read in both directions, if the configuration says so too.
    """

    def __init__(self, config: LstmConfig, both_ways: bool = True) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.LSTM(
            config.embedding_size,
            config.hidden_size,
            config.num_hidden_layers,
            batch_first=True,
            dropout=config.dropout if config.num_hidden_layers > 1 else 0.0,
            bidirectional=both_ways and config.bidirectional,
        )
        self.width = config.hidden_size * (2 if self.layers.bidirectional else 1)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the word embedding."""
        return self.embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embedding."""
        self.embeddings = value

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **unused: Any
    ) -> BaseModelOutput:
        """Return the top layer's states, (batch, length, width); zero where there is padding.

        Args:
            input_ids: Token ids (batch, length).
            attention_mask: 1 for tokens and 0 for padding after them (batch, length); None for no padding.
        """
        embedded = self.dropout(self.embeddings(input_ids))
        if attention_mask is None:
            states, _ = self.layers(embedded)
            return BaseModelOutput(last_hidden_state=states)
        lengths = attention_mask.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(
            self.layers(packed)[0], batch_first=True, total_length=input_ids.shape[1]
        )
        return BaseModelOutput(last_hidden_state=states)


class LstmWithClassifier(LstmPreTrainedModel):
    """A (Bi)LSTM and a linear layer from its states to labels."""

    def __init__(self, config: LstmConfig) -> None:
        super().__init__(config)
        self.lstm = LstmModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(self.lstm.width, config.num_labels)
        self.post_init()


class LstmForSequenceClassification(LstmWithClassifier):
    """A (Bi)LSTM whose states, pooled over the text, are classified; one output for regression."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **unused: Any
    ) -> SequenceClassifierOutput:
        """Return logits (batch, labels)."""
        states = self.lstm(input_ids, attention_mask).last_hidden_state
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        pooled = self.dropout(_pooled(states, mask.unsqueeze(-1).bool(), self.config.pooling))
        return SequenceClassifierOutput(logits=self.classifier(pooled))


class LstmForTokenClassification(LstmWithClassifier):
    """A (Bi)LSTM whose state at each token is classified."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **unused: Any
    ) -> TokenClassifierOutput:
        """Return logits (batch, length, labels)."""
        states = self.lstm(input_ids, attention_mask).last_hidden_state
        return TokenClassifierOutput(logits=self.classifier(self.dropout(states)))


class LstmForCausalLM(LstmPreTrainedModel):
    """An LSTM, in one direction always, that predicts the next token."""

    def __init__(self, config: LstmConfig) -> None:
        super().__init__(config)
        self.lstm = LstmModel(config, both_ways=False)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = nn.Linear(self.lstm.width, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """Return the layer that scores tokens."""
        return self.lm_head

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **unused: Any
    ) -> CausalLMOutput:
        """Return logits (batch, length, tokens). Padding comes after the text, so it needs no mask."""
        states = self.lstm(input_ids).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(self.dropout(states)))


def _pooled(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Return one state a text, over its tokens alone."""
    if pooling == "mean":
        return (states * mask).sum(1) / mask.sum(1).clamp(min=1)
    return states.masked_fill(~mask, torch.finfo(states.dtype).min).amax(1)


AutoConfig.register(LstmConfig.model_type, LstmConfig, exist_ok=True)
AutoModel.register(LstmConfig, LstmModel, exist_ok=True)
AutoModelForSequenceClassification.register(LstmConfig, LstmForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(LstmConfig, LstmForTokenClassification, exist_ok=True)
AutoModelForCausalLM.register(LstmConfig, LstmForCausalLM, exist_ok=True)
