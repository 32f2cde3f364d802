"""The promises of run locks as tests, in parts."""
