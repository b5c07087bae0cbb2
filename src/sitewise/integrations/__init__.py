"""Modules that connect models with other systems. The package of another system is imported only when it is used."""
