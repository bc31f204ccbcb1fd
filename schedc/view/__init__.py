"""What is shown: in the terminal, as a page, as pictures, in foreign viewers."""
