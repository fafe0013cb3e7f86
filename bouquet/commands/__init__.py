"""The commands, by topic, and the options that they share."""
