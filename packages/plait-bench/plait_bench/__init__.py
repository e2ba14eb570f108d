"""Tasks with known answers, and the environments that grade them."""
