"""Whether one serving plan is no worse than another."""

__all__ = ["TIMES", "no_worse"]

TIMES = ("time_to_first_token", "time_per_output_token", "request_latency")


def no_worse(one, other, tolerance):
    """Return whether an engine gives as many tokens in as little time as another one, within a tolerance."""
    names = TIMES if one.load.kind != "maximum" else ["time_per_output_token"]
    times = [(getattr(one, name), getattr(other, name)) for name in names]
    enough = one.output_tokens_per_second * (1 + tolerance) >= other.output_tokens_per_second
    return enough and all(a <= b * (1 + tolerance) for a, b in times)
