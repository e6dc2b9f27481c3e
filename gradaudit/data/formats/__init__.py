"""File formats: one reader each, and the table that finds the right one."""
