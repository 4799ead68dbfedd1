"""A disk that is full, as the system says it is: no privileges are needed for that."""

import resource
from contextlib import contextmanager


@contextmanager
def short_of_space(limit):
    """Within this context no file can grow beyond ``limit`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
