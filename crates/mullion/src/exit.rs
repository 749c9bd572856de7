//! Exit codes, and reports of failures: one line on standard error and, with `-o json`, a document on standard output.

use std::ffi::OsString;
use std::process::ExitCode;

use serde_json::json;

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
pub const USAGE: u8 = 64;
/// Done, but not all of it.
#[cfg(target_os = "linux")]
pub const INCOMPLETE: u8 = 76;
/// The archive is damaged, hostile or not an image archive; or larger than allowed.
pub const ARCHIVE: u8 = 80;
/// Nothing in it is for any of the nodes.
pub const NO_MATCH: u8 = 81;
/// The registry has no such image, wants credentials, or cannot be reached.
pub const REGISTRY: u8 = 82;
/// No node has the image.
pub const NO_IMAGE: u8 = 83;

/// A name for each code, for programs; `docs/exit-codes.md` lists them.
const REASONS: [(u8, &str); 18] = [
    (USAGE, "Usage"),
    (65, "Directory"),
    (66, "PortTaken"),
    (67, "UserNamespaces"),
    (68, "Nftables"),
    (69, "DiskFull"),
    (70, "Outside"),
    (71, "NoWine"),
    (72, "NoTemplate"),
    (73, "OtherTemplate"),
    (74, "NotRunning"),
    (75, "Running"),
    (76, "Incomplete"),
    (77, "Timeout"),
    (ARCHIVE, "Archive"),
    (NO_MATCH, "NoMatch"),
    (REGISTRY, "Registry"),
    (NO_IMAGE, "NoImage"),
];

impl Failure {
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
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<lab::error::LabError>() {
            return error.exit_code() as u8;
        }
        if let Some(error) = cause.downcast_ref::<crate::linux::cluster::ClusterError>() {
            return error.exit_code() as u8;
        }
    }
    let _ = error;
    FAILED
}

/// Whether a command line asks for JSON (`-o json` in any of its forms), so that its failure is printed as JSON too, even a wrong option.
pub fn wants_json(args: &[OsString]) -> bool {
    let args: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).take_while(|arg| *arg != "--").collect();
    // There -o names a file.
    if matches!(args.first(), Some(&("support-bundle" | "kube-proxy"))) {
        return false;
    }
    // Its document is of a template that does not fit, too.
    if args.first() == Some(&"template") && args.contains(&"--status") {
        return false;
    }
    let joined = |arg: &&str| matches!(*arg, "-ojson" | "-o=json" | "--output=json");
    args.iter().any(joined) || args.windows(2).any(|pair| matches!(pair[0], "-o" | "--output") && pair[1] == "json")
}

/// Reports a failure, and turns the result into the exit code.
pub fn report(result: Result<(), Failure>, as_json: bool) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, error }) => {
            let message = printable(&format!("{error:#}"));
            eprintln!("mullion: {message}");
            if as_json {
                print_json(code, &message);
            }
            ExitCode::from(code)
        }
    }
}

/// Without characters that would change the terminal: names and reasons may come from foreign files.
fn printable(text: &str) -> String {
    let escaped = |c: char| if c.is_control() && c != '\n' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

/// Reports what clap found: help and version are no failures.
pub fn report_usage(error: &clap::Error, as_json: bool) -> ExitCode {
    // A closed pipe changes nothing.
    drop(error.print());
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    if as_json {
        let text = error.to_string();
        let message = text.split("\n\n").next().unwrap_or_default().trim().trim_start_matches("error: ").replace('\n', " ");
        print_json(USAGE, &message);
    }
    ExitCode::from(USAGE)
}

fn print_json(code: u8, message: &str) {
    let reason = REASONS.iter().find(|(known, _)| *known == code).map_or("Failure", |(_, reason)| reason);
    println!("{:#}", json!({"error": {"reason": reason, "message": message, "exitCode": code}}));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_no_control_characters() {
        assert_eq!(printable("a\u{1b}[2Jb\0\r\nü"), "a\\u{1b}[2Jb\\u{0}\\r\nü");
    }

    #[test]
    fn json_is_asked_for_in_any_form() {
        let wants = |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["up -o json", "status --output json", "status -ojson", "image load x --output=json", "down -o=json", "upp -o json"] {
            assert!(wants(line), "{line}");
        }
        for line in ["up", "up -o yaml", "support-bundle -o json", "hns relay -- -o json", "logs json -o"] {
            assert!(!wants(line), "{line}");
        }
    }
}
