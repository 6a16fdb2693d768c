"""Numbers, names and texts for people: units, safe text, suggestions and the order of labels."""
