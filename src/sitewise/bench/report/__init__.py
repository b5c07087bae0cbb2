"""Tables and figures of experiments. They are made from summaries and plain records only."""
