"""A step of reinforcement learning: rollouts, log-probabilities, training, refit."""
