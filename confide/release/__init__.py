"""What leaves: released folders, the certificate, its seal, and a verifier for who receives it."""
