"""The wire protocol: envelopes, codecs, and the conversion of arguments to annotated types."""
