"""The commands, one file each: it parses, makes one call, prints."""
