"""The checker of types that the import hook in conftest.py puts around every function of turnpoint."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as for the static checker
