"""A provider of inspect-ai that answers with models loaded here."""
