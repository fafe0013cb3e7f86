"""What is learned: the targets, the loss, the score."""
