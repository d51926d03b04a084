"""Settlement: from what is known of attempts in flight to what is remembered of them and done about them."""
