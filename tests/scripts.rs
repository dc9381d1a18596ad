//! Every outcome of every script.
