"""Chats: what people write lands at once, answers come in order, and a lost connection loses nothing."""
