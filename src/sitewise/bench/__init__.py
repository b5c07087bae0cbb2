"""The comparison suite: other methods, experiments with their tables and figures, data collections, the demo.

It stands on the method and the method never imports it: whoever wants GPA alone need not read it.
"""
