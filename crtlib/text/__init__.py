"""Text: records, corpora, data points, tokenizers."""
