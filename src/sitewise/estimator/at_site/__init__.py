"""What is kept of a site's rows, and what an adapted site can be asked."""
