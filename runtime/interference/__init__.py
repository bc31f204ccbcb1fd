"""How much other tasks slow a rank down, told from what it sees of its machine; imported only by jobs that ask for it."""
