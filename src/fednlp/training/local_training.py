"""How one client trains: the options, which are keys of ``[client]``, their ranges and defaults."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fednlp.option_types import Decay, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt


class LocalTraining(BaseModel):
    """How one client trains: an option of its own, never implied by the algorithm's name.

    An option is defined here alone: these are the keys of ``[client]``, by the names of Hugging Face's
    ``TrainingArguments``, and :class:`fednlp.training.local.LocalTrainer` reads them.

    Attributes:
        learning_rate: Step size at the top of the schedule.
        num_train_epochs: Passes over the client's examples.
        max_steps: Local steps instead of epochs, if positive.
        per_device_train_batch_size: Examples a forward and backward pass.
        gradient_accumulation_steps: Passes a local step; the last step of an epoch has those that are left.
        max_tokens_per_batch: If positive, the passes of a step hold as many of its examples as fit in so many tokens.
        gradient_checkpointing: The backward pass computes the activations of each layer again.
        padding_free: The layers of an encoder compute the texts of a batch end to end, without padding.
        weight_decay: Not applied to biases and layer norms.
        lr_scheduler_type: Of the learning rate over the client's local steps of one round.
        warmup_steps: Steps in which the rate rises from 0; below 1, their fraction of all steps, rounded up.
        max_grad_norm: Gradients are scaled down to this norm; 0 for never.
        group_by_length: Batches are made of examples of similar length.
        bf16: Forward passes in bfloat16; ``"auto"`` for where it is faster, which is decided once for a run.
        fp16: Forward passes in float16 with a scaled loss, on a GPU only.
        keep_optimizer: The optimiser's state stays with the client from one of its rounds to the next.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    optimizer: Literal["sgd", "adam", "adamw", "adagrad"] = "adamw"
    learning_rate: PositiveFloat = 5e-5
    momentum: Decay = 0.0
    num_train_epochs: PositiveInt = 1
    max_steps: Annotated[int, Field(ge=-1)] = -1
    per_device_train_batch_size: PositiveInt = 8
    gradient_accumulation_steps: PositiveInt = 1
    max_tokens_per_batch: Annotated[int, Field(ge=0)] = 0
    gradient_checkpointing: bool = False
    padding_free: bool = False
    weight_decay: NonNegativeFloat = 0.0
    lr_scheduler_type: Literal[
        "constant", "constant_with_warmup", "linear", "cosine", "polynomial", "inverse_sqrt"
    ] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] | Fraction = 0
    max_grad_norm: NonNegativeFloat = 0.0
    group_by_length: bool = True
    keep_optimizer: bool = False
    bf16: bool | Literal["auto"] = False
    fp16: bool = False

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f'momentum belongs to optimizer = "sgd"; {self.optimizer} has none: leave it out'
            )
        if self.warmup_steps and self.lr_scheduler_type == "constant":
            raise ValueError('warmup_steps needs a schedule: say lr_scheduler_type = "constant_with_warmup"')
        if self.bf16 and self.fp16:
            raise ValueError("bf16 and fp16 are two precisions: leave one of them out")
        if self.max_steps == 0:
            raise ValueError("max_steps = 0 would train nothing; give a number of steps, or -1 for epochs")
        return self

    @property
    def leaves_zero_gradients_alone(self) -> bool:
        """Whether a weight whose gradient is always zero stays as it is, so that it need not be loaded."""
        return self.weight_decay == 0 and not self.keep_optimizer

    @property
    def examples_per_step(self) -> int:
        """Examples of one optimiser step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    def steps(self, examples: int) -> int:
        """Return how many local steps a client with so many examples takes in a round.

        >>> LocalTraining(num_train_epochs=2).steps(9), LocalTraining(max_steps=3).steps(9)
        (4, 3)
        """
        return (
            self.max_steps
            if self.max_steps > 0
            else self.num_train_epochs * -(-examples // self.examples_per_step)
        )
