"""Text from outside: exports, mail and chats of others become a corpus folder."""
