"""The device's own data: loading, reading a folder, and keeping what was made of it between messages."""
