"""Use the models that runs end with: predict, score, export."""
