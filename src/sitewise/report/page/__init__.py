"""The report of an adapted site: one HTML page, and the same content as JSON."""
