"""What the endpoints of all generations share."""
