"""Attacks on the library: families of seeded, hostile inputs, each checked against an oracle that is not our code."""
