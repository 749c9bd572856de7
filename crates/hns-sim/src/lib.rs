//! The Host Networking Service on Linux: a pure model, and one adapter that makes it real.
