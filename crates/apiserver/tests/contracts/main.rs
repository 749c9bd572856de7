//! The contract of every served kind, over TLS: what discovery lists is what tests walk, so a new kind is held to it from its first day.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod objects;
mod rights;
mod served;
mod verbs;
