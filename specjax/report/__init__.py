"""Results for the eye."""
