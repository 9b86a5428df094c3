"""A run as a typed, frozen recipe. Unknown keys are refused with the nearest name; every key is read.

A recipe is YAML, overridden by dotted `key=value`; the resolved form is saved in the run folder. Choices
with their own options are told apart by `kind`, so that an option of another choice cannot be written.
Importing this package loads neither torch nor transformers.
"""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.config.asking import AdapterConfig as AdapterConfig
    from turnpoint.config.asking import ChatPrompt as ChatPrompt
    from turnpoint.config.asking import CodeVerifierConfig as CodeVerifierConfig
    from turnpoint.config.asking import FewShotPrompt as FewShotPrompt
    from turnpoint.config.asking import FunctionVerifierConfig as FunctionVerifierConfig
    from turnpoint.config.asking import HubTasks as HubTasks
    from turnpoint.config.asking import HumanEvalTasks as HumanEvalTasks
    from turnpoint.config.asking import JsonlTasks as JsonlTasks
    from turnpoint.config.asking import MathVerifierConfig as MathVerifierConfig
    from turnpoint.config.asking import ModelConfig as ModelConfig
    from turnpoint.config.asking import NewAdapter as NewAdapter
    from turnpoint.config.asking import NoVerifierConfig as NoVerifierConfig
    from turnpoint.config.asking import ParquetTasks as ParquetTasks
    from turnpoint.config.asking import PromptConfig as PromptConfig
    from turnpoint.config.asking import ReasoningGymTasks as ReasoningGymTasks
    from turnpoint.config.asking import ReasoningGymVerifierConfig as ReasoningGymVerifierConfig
    from turnpoint.config.asking import RowFormat as RowFormat
    from turnpoint.config.asking import SavedAdapter as SavedAdapter
    from turnpoint.config.asking import TasksConfig as TasksConfig
    from turnpoint.config.asking import VerifierConfig as VerifierConfig
    from turnpoint.config.base import Recipe as Recipe
    from turnpoint.config.branching import BranchingConfig as BranchingConfig
    from turnpoint.config.branching import EntropyRuleConfig as EntropyRuleConfig
    from turnpoint.config.branching import FeedbackSource as FeedbackSource
    from turnpoint.config.branching import GateConfig as GateConfig
    from turnpoint.config.branching import HindsightRuleConfig as HindsightRuleConfig
    from turnpoint.config.branching import RandomRuleConfig as RandomRuleConfig
    from turnpoint.config.branching import ReflectionSource as ReflectionSource
    from turnpoint.config.branching import RuleConfig as RuleConfig
    from turnpoint.config.branching import SiblingSource as SiblingSource
    from turnpoint.config.branching import SourceConfig as SourceConfig
    from turnpoint.config.branching import StepsRuleConfig as StepsRuleConfig
    from turnpoint.config.branching import SurprisalRuleConfig as SurprisalRuleConfig
    from turnpoint.config.distillation import DistillConfig as DistillConfig
    from turnpoint.config.distillation import DistillLossConfig as DistillLossConfig
    from turnpoint.config.distillation import EmaTeacher as EmaTeacher
    from turnpoint.config.distillation import ForwardKlLoss as ForwardKlLoss
    from turnpoint.config.distillation import HindsightTeacher as HindsightTeacher
    from turnpoint.config.distillation import HybridLoss as HybridLoss
    from turnpoint.config.distillation import JensenShannonLoss as JensenShannonLoss
    from turnpoint.config.distillation import MixtureTeacher as MixtureTeacher
    from turnpoint.config.distillation import ModelTeacher as ModelTeacher
    from turnpoint.config.distillation import ReverseKlLoss as ReverseKlLoss
    from turnpoint.config.distillation import RunTeacher as RunTeacher
    from turnpoint.config.distillation import SampledLoss as SampledLoss
    from turnpoint.config.distillation import StartTeacher as StartTeacher
    from turnpoint.config.distillation import TeacherConfig as TeacherConfig
    from turnpoint.config.drafting import CheckpointHeads as CheckpointHeads
    from turnpoint.config.drafting import DraftConfig as DraftConfig
    from turnpoint.config.drafting import DraftTrainingConfig as DraftTrainingConfig
    from turnpoint.config.drafting import FirstLoss as FirstLoss
    from turnpoint.config.drafting import FolderHeads as FolderHeads
    from turnpoint.config.drafting import FreshHeads as FreshHeads
    from turnpoint.config.drafting import HeadsConfig as HeadsConfig
    from turnpoint.config.drafting import JsonlTexts as JsonlTexts
    from turnpoint.config.drafting import RunTexts as RunTexts
    from turnpoint.config.drafting import TextsConfig as TextsConfig
    from turnpoint.config.learning import AdvantageConfig as AdvantageConfig
    from turnpoint.config.learning import Aggregation as Aggregation
    from turnpoint.config.learning import BaseReference as BaseReference
    from turnpoint.config.learning import CispoLoss as CispoLoss
    from turnpoint.config.learning import CorrectionConfig as CorrectionConfig
    from turnpoint.config.learning import EngineConfig as EngineConfig
    from turnpoint.config.learning import EvaluationConfig as EvaluationConfig
    from turnpoint.config.learning import GroupAdvantageConfig as GroupAdvantageConfig
    from turnpoint.config.learning import GspoLoss as GspoLoss
    from turnpoint.config.learning import KlConfig as KlConfig
    from turnpoint.config.learning import LossConfig as LossConfig
    from turnpoint.config.learning import ModelReference as ModelReference
    from turnpoint.config.learning import OptimizerConfig as OptimizerConfig
    from turnpoint.config.learning import OverlongConfig as OverlongConfig
    from turnpoint.config.learning import OverlongMask as OverlongMask
    from turnpoint.config.learning import OverlongPenalty as OverlongPenalty
    from turnpoint.config.learning import PpoClipLoss as PpoClipLoss
    from turnpoint.config.learning import ReferenceConfig as ReferenceConfig
    from turnpoint.config.learning import RefillConfig as RefillConfig
    from turnpoint.config.learning import ReinforceLoss as ReinforceLoss
    from turnpoint.config.learning import RolloutConfig as RolloutConfig
    from turnpoint.config.learning import SamplingConfig as SamplingConfig
    from turnpoint.config.learning import SiblingAdvantageConfig as SiblingAdvantageConfig
    from turnpoint.config.learning import StartReference as StartReference
    from turnpoint.config.learning import StepConfig as StepConfig
    from turnpoint.config.learning import SubtreeAdvantageConfig as SubtreeAdvantageConfig
    from turnpoint.config.learning import TensorBoardConfig as TensorBoardConfig
    from turnpoint.config.learning import TrackersConfig as TrackersConfig
    from turnpoint.config.learning import TrackioConfig as TrackioConfig
    from turnpoint.config.learning import TrainingConfig as TrainingConfig
    from turnpoint.config.learning import WandbConfig as WandbConfig
    from turnpoint.config.reading import all_keys as all_keys
    from turnpoint.config.reading import dump_recipe as dump_recipe
    from turnpoint.config.reading import load_draft_recipe as load_draft_recipe
    from turnpoint.config.reading import load_recipe as load_recipe
    from turnpoint.config.reading import load_run_recipe as load_run_recipe
    from turnpoint.config.reading import load_sft_recipe as load_sft_recipe
    from turnpoint.config.reading import parse_draft_recipe as parse_draft_recipe
    from turnpoint.config.reading import parse_recipe as parse_recipe
    from turnpoint.config.reading import parse_sft_recipe as parse_sft_recipe
    from turnpoint.config.recipes import RunConfig as RunConfig
    from turnpoint.config.recipes import SftConfig as SftConfig
    from turnpoint.config.recipes import SftTrainingConfig as SftTrainingConfig
    from turnpoint.config.servers import ServerTeacher as ServerTeacher
    from turnpoint.config.speculation import EngineDraftConfig as EngineDraftConfig
    from turnpoint.config.speculation import HeadTrainingConfig as HeadTrainingConfig

__all__ = [
    "AdapterConfig",
    "AdvantageConfig",
    "Aggregation",
    "BaseReference",
    "BranchingConfig",
    "ChatPrompt",
    "CheckpointHeads",
    "CispoLoss",
    "CodeVerifierConfig",
    "CorrectionConfig",
    "DistillConfig",
    "DistillLossConfig",
    "DraftConfig",
    "DraftTrainingConfig",
    "EmaTeacher",
    "EngineConfig",
    "EngineDraftConfig",
    "EntropyRuleConfig",
    "EvaluationConfig",
    "FeedbackSource",
    "FewShotPrompt",
    "FirstLoss",
    "FolderHeads",
    "ForwardKlLoss",
    "FreshHeads",
    "FunctionVerifierConfig",
    "GateConfig",
    "GroupAdvantageConfig",
    "GspoLoss",
    "HeadTrainingConfig",
    "HeadsConfig",
    "HindsightRuleConfig",
    "HindsightTeacher",
    "HubTasks",
    "HumanEvalTasks",
    "HybridLoss",
    "JensenShannonLoss",
    "JsonlTasks",
    "JsonlTexts",
    "KlConfig",
    "LossConfig",
    "MathVerifierConfig",
    "MixtureTeacher",
    "ModelConfig",
    "ModelReference",
    "ModelTeacher",
    "NewAdapter",
    "NoVerifierConfig",
    "OptimizerConfig",
    "OverlongConfig",
    "OverlongMask",
    "OverlongPenalty",
    "ParquetTasks",
    "PpoClipLoss",
    "PromptConfig",
    "RandomRuleConfig",
    "ReasoningGymTasks",
    "ReasoningGymVerifierConfig",
    "Recipe",
    "ReferenceConfig",
    "RefillConfig",
    "ReflectionSource",
    "ReinforceLoss",
    "ReverseKlLoss",
    "RolloutConfig",
    "RowFormat",
    "RuleConfig",
    "RunConfig",
    "RunTeacher",
    "RunTexts",
    "SampledLoss",
    "SamplingConfig",
    "SavedAdapter",
    "ServerTeacher",
    "SftConfig",
    "SftTrainingConfig",
    "SiblingAdvantageConfig",
    "SiblingSource",
    "SourceConfig",
    "StartReference",
    "StartTeacher",
    "StepConfig",
    "StepsRuleConfig",
    "SubtreeAdvantageConfig",
    "SurprisalRuleConfig",
    "TasksConfig",
    "TeacherConfig",
    "TensorBoardConfig",
    "TextsConfig",
    "TrackersConfig",
    "TrackioConfig",
    "TrainingConfig",
    "VerifierConfig",
    "WandbConfig",
    "all_keys",
    "dump_recipe",
    "load_draft_recipe",
    "load_recipe",
    "load_run_recipe",
    "load_sft_recipe",
    "parse_draft_recipe",
    "parse_recipe",
    "parse_sft_recipe",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "AdapterConfig": "asking",
        "AdvantageConfig": "learning",
        "SubtreeAdvantageConfig": "learning",
        "SiblingAdvantageConfig": "learning",
        "GroupAdvantageConfig": "learning",
        "SurprisalRuleConfig": "branching",
        "StepsRuleConfig": "branching",
        "SourceConfig": "branching",
        "SiblingSource": "branching",
        "RuleConfig": "branching",
        "ReflectionSource": "branching",
        "RandomRuleConfig": "branching",
        "HindsightRuleConfig": "branching",
        "GateConfig": "branching",
        "FeedbackSource": "branching",
        "EntropyRuleConfig": "branching",
        "BranchingConfig": "branching",
        "Aggregation": "learning",
        "BaseReference": "learning",
        "ChatPrompt": "asking",
        "CispoLoss": "learning",
        "CodeVerifierConfig": "asking",
        "CorrectionConfig": "learning",
        "EngineConfig": "learning",
        "EvaluationConfig": "learning",
        "FewShotPrompt": "asking",
        "FunctionVerifierConfig": "asking",
        "GspoLoss": "learning",
        "HubTasks": "asking",
        "HumanEvalTasks": "asking",
        "JsonlTasks": "asking",
        "KlConfig": "learning",
        "LossConfig": "learning",
        "MathVerifierConfig": "asking",
        "NoVerifierConfig": "asking",
        "ModelConfig": "asking",
        "ModelReference": "learning",
        "NewAdapter": "asking",
        "OptimizerConfig": "learning",
        "OverlongConfig": "learning",
        "OverlongMask": "learning",
        "OverlongPenalty": "learning",
        "ParquetTasks": "asking",
        "PpoClipLoss": "learning",
        "PromptConfig": "asking",
        "ReasoningGymTasks": "asking",
        "ReasoningGymVerifierConfig": "asking",
        "Recipe": "base",
        "ReferenceConfig": "learning",
        "RefillConfig": "learning",
        "ReinforceLoss": "learning",
        "RolloutConfig": "learning",
        "RowFormat": "asking",
        "RunConfig": "recipes",
        "SamplingConfig": "learning",
        "SavedAdapter": "asking",
        "SftConfig": "recipes",
        "SftTrainingConfig": "recipes",
        "StartReference": "learning",
        "StepConfig": "learning",
        "TasksConfig": "asking",
        "TensorBoardConfig": "learning",
        "TrackersConfig": "learning",
        "TrackioConfig": "learning",
        "TrainingConfig": "learning",
        "VerifierConfig": "asking",
        "WandbConfig": "learning",
        "DistillConfig": "distillation",
        "DistillLossConfig": "distillation",
        "HindsightTeacher": "distillation",
        "ModelTeacher": "distillation",
        "RunTeacher": "distillation",
        "TeacherConfig": "distillation",
        "StartTeacher": "distillation",
        "MixtureTeacher": "distillation",
        "EmaTeacher": "distillation",
        "ServerTeacher": "servers",
        "ForwardKlLoss": "distillation",
        "HybridLoss": "distillation",
        "JensenShannonLoss": "distillation",
        "ReverseKlLoss": "distillation",
        "SampledLoss": "distillation",
        "EngineDraftConfig": "speculation",
        "HeadTrainingConfig": "speculation",
        "DraftConfig": "drafting",
        "DraftTrainingConfig": "drafting",
        "RunTexts": "drafting",
        "JsonlTexts": "drafting",
        "TextsConfig": "drafting",
        "FreshHeads": "drafting",
        "FolderHeads": "drafting",
        "CheckpointHeads": "drafting",
        "HeadsConfig": "drafting",
        "FirstLoss": "drafting",
        "load_draft_recipe": "reading",
        "all_keys": "reading",
        "dump_recipe": "reading",
        "load_recipe": "reading",
        "load_run_recipe": "reading",
        "load_sft_recipe": "reading",
        "parse_draft_recipe": "reading",
        "parse_recipe": "reading",
        "parse_sft_recipe": "reading",
    },
)
