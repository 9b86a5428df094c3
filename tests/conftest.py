"""Shapes written in jaxtyping annotations are checked while tests run, and only then."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach a hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from beartype import BeartypeConf, beartype
from hypothesis import settings
from jaxtyping import install_import_hook

check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as for the static checker
install_import_hook("turnpoint", "tests.conftest.check")

settings.register_profile("turnpoint", deadline=None)  # a busy machine is no failure
settings.load_profile("turnpoint")
