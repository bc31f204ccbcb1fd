"""What is different between two plans: layout, orders, certificate, memory, costs."""
