"""When everything of a schedule happens, and what memory it holds: the event loop, timelines, memory curves."""
