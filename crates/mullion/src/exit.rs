//! Exit codes, and the one line that says why.

use std::process::ExitCode;

/// Why the program ends without having done what it was asked.
#[derive(Debug)]
pub struct Failure {
    /// The exit code; `docs/exit-codes.md` lists them.
    pub code: u8,
    /// What failed, on what, and the way out.
    pub error: anyhow::Error,
}

/// Something failed that has no code of its own.
pub const FAILED: u8 = 1;
/// Wrong arguments.
#[cfg(target_os = "linux")]
pub const USAGE: u8 = lab::error::ExitCode::Usage as u8;
/// Done, but not all of it.
#[cfg(target_os = "linux")]
pub const INCOMPLETE: u8 = 76;

impl Failure {
    /// A failure with a code of its own.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only the commands of one-machine clusters have codes of their own"))]
    pub fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into() }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        Self { code: code(&error), error }
    }
}

/// The code of the error that began it.
fn code(error: &anyhow::Error) -> u8 {
    #[cfg(target_os = "linux")]
    if let Some(error) = error.chain().find_map(|cause| cause.downcast_ref::<lab::error::LabError>()) {
        return error.exit_code() as u8;
    }
    let _ = error;
    FAILED
}

/// Prints a failure as one line, and turns the result into the exit code.
pub fn report(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, error }) => {
            eprintln!("mullion: {error:#}");
            ExitCode::from(code)
        }
    }
}
