"""What several test modules share: models that are tables, and ways to run loops over them."""
