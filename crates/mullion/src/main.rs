//! The command line of Mullion, and the only place where its parts are chosen and wired together.
fn main() {}
