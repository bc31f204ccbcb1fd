"""Plans run inside other training frameworks, one module or folder for each; nothing imports it unless a job does."""
