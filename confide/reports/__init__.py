"""What a person signs or reads."""
