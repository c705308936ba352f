"""REST by google.api.http annotations, and the page that shows it."""
