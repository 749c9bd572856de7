//! What the loop and the backends tell each other.

use crate::table::FrontKey;

/// A front end that could not be made what the table says; it is retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which one.
    pub key: FrontKey,
    /// Why, with the way out.
    pub reason: String,
}

/// What a pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many writes reached the host.
    pub writes: usize,
    /// What is left to do.
    pub failures: Vec<Failure>,
}
