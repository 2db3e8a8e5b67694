"""vtaudit: audit logged trajectories and recompute V-trace targets before off-policy training."""
