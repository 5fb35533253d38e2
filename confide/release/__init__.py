"""What leaves: the one gate, the certificate, its seal, and a verifier for who receives it."""
