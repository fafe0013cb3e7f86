"""The first hour: what a folder of data holds, settings for it, and whether federation pays for it."""
