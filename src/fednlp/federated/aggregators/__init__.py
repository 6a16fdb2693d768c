"""How the updates of a cohort become one: one file for each rule."""
