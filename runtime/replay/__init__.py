"""Link traces replayed on one machine: emulations whose ranks measure their links and move to other plans while they run."""
