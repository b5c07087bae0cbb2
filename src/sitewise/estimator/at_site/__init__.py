"""Functions behind the methods of an adapted site: diagnosis, outcome, performance, updates, reports."""
