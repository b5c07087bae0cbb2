"""A process that waits for another, which fails; apart, so that new processes import little."""


def wait_for_the_second(fabric, what):
    """The first waits."""
    if fabric.global_rank == 1:
        raise ValueError(f"the second {what}")
    fabric.barrier()
