"""The report of an adapted site: one HTML page, and the same content as JSON."""

from sitewise.report.page.content import Content, Profile, TrainingSite, build_content
from sitewise.report.page.render import render, write_report

__all__ = ["Content", "Profile", "TrainingSite", "build_content", "render", "write_report"]
