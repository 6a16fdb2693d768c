"""Few-shot federated learning: the parts of FeS (Cai et al. 2023), pure where they can be."""
