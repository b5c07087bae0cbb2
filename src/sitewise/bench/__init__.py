"""The comparison suite: other methods, experiments with their tables and figures, data collections and the demo.

This subpackage imports the rest of sitewise, which never imports it. Readers who only need GPA can skip it.
"""
