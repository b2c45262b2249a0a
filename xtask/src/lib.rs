//! Private servers for tests and the demo.
