"""What several tests share: scripted devices, replies that are checked by hand, waiting for processes."""
