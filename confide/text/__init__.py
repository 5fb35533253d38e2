"""Text from outside: turn other people's exports, mail and chats into a corpus folder."""
