"""The comparison suite: other methods, experiments with their tables and figures, data collections, the demo.

It uses the method, and the method never imports it: readers who only need GPA can skip it.
"""
