"""Tables and figures of experiments, from summaries and plain records only."""
