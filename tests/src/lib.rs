//! What all integration tests share: databases, writers and the oracle.
