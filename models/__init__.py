"""Loading a model and its processor, building prompts, and telling token groups."""

from mmprobe.models.loading import Alias, Model, aliases, load_model
from mmprobe.models.prompt import Group, Prompt

__all__ = ["Alias", "Group", "Model", "Prompt", "aliases", "load_model"]
