//! Exit codes, and reports of failures: one line on standard error and, with `-o json`, a document on standard output.

use std::ffi::OsString;
#[cfg(target_os = "linux")]
use std::io::ErrorKind;
use std::process::ExitCode;

#[cfg(target_os = "linux")]
use lab::error::LabError;
use serde_json::json;

#[cfg(target_os = "linux")]
use crate::linux::cluster_file::ClusterError;

/// Why the program ends without having done what it was asked.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    /// What failed, on what, and the way out.
    pub error: anyhow::Error,
}

/// Why the program ends, for programs: the exit code, and with `-o json` the reason. `docs/exit-codes.md` lists them; they do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "most belong to commands that only Linux has"))]
pub enum Code {
    /// Anything without a code of its own.
    Failure = 1,
    /// Wrong arguments.
    Usage = 64,
    /// DIR is of a newer format, damaged, specifies another cluster, or holds foreign files.
    Directory = 65,
    PortTaken = 66,
    /// User namespaces are not usable.
    UserNamespaces = 67,
    /// nf_tables is not usable.
    Nftables = 68,
    DiskFull = 69,
    /// There is no way to other networks (`--outside`).
    Outside = 70,
    NoWine = 71,
    /// There is no Windows template.
    NoTemplate = 72,
    /// The Windows template is another version's.
    OtherTemplate = 73,
    /// No cluster runs on DIR, or no Windows node of it.
    NotRunning = 74,
    /// A cluster runs on DIR already.
    Running = 75,
    /// Done, but not all of it.
    Incomplete = 76,
    /// The cluster was not ready in time (`up --timeout`).
    Timeout = 77,
    /// The archive is damaged, hostile or not an image archive; or larger than allowed.
    Archive = 80,
    /// Nothing in it is for any of the nodes.
    NoMatch = 81,
    /// The registry has no such image, wants credentials, or cannot be reached.
    Registry = 82,
    /// No node has the image.
    NoImage = 83,
    /// The machine cannot join a cluster as it is (`join`).
    Preflight = 84,
    /// The server that answered did not prove that it belongs to the cluster (`join`).
    Untrusted = 85,
    /// A Ready node has the name (`join`).
    NameTaken = 86,
}

impl Code {
    #[cfg(any(target_os = "linux", test))]
    pub const ALL: [Self; 22] = [
        Self::Failure,
        Self::Usage,
        Self::Directory,
        Self::PortTaken,
        Self::UserNamespaces,
        Self::Nftables,
        Self::DiskFull,
        Self::Outside,
        Self::NoWine,
        Self::NoTemplate,
        Self::OtherTemplate,
        Self::NotRunning,
        Self::Running,
        Self::Incomplete,
        Self::Timeout,
        Self::Archive,
        Self::NoMatch,
        Self::Registry,
        Self::NoImage,
        Self::Preflight,
        Self::Untrusted,
        Self::NameTaken,
    ];

    pub fn number(self) -> u8 {
        self as u8
    }

    /// The code of a number that a copy of this program ended with; `Failure` for any other.
    #[cfg(target_os = "linux")]
    pub fn of_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|code| code.number() == number).unwrap_or(Self::Failure)
    }

    #[cfg(target_os = "linux")]
    fn of_lab(error: &LabError) -> Self {
        match error {
            LabError::Damaged { .. } | LabError::ForeignFiles(_) => Self::Directory,
            LabError::PortTaken(_) => Self::PortTaken,
            LabError::Namespaces(_) => Self::UserNamespaces,
            LabError::Nftables(_) => Self::Nftables,
            LabError::Disk { .. } => Self::DiskFull,
            LabError::File { source, .. } if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => Self::DiskFull,
            LabError::Outside(_) => Self::Outside,
            LabError::NotRunning(_) => Self::NotRunning,
            LabError::Running { .. } => Self::Running,
            LabError::RunDir { .. } | LabError::File { .. } | LabError::Init(_) | LabError::StillRuns { .. } => Self::Failure,
        }
    }

    #[cfg(target_os = "linux")]
    fn of_cluster(error: &ClusterError) -> Self {
        match error {
            ClusterError::Spec(_)
            | ClusterError::Addresses(_)
            | ClusterError::OneFamily { .. }
            | ClusterError::PrimaryFamily { .. }
            | ClusterError::Lan(_) => Self::Usage,
            ClusterError::HollowName { .. } | ClusterError::HollowNetwork { .. } => Self::Usage,
            ClusterError::NewerFormat { .. } | ClusterError::OtherCluster { .. } | ClusterError::Delete { .. } => Self::Directory,
            ClusterError::Lab(error) => Self::of_lab(error),
        }
    }
}

impl Failure {
    pub fn new(code: Code, error: impl Into<anyhow::Error>) -> Self {
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
fn code(error: &anyhow::Error) -> Code {
    #[cfg(target_os = "linux")]
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<LabError>() {
            return Code::of_lab(error);
        }
        if let Some(error) = cause.downcast_ref::<ClusterError>() {
            return Code::of_cluster(error);
        }
    }
    let _ = error;
    Code::Failure
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
            ExitCode::from(code.number())
        }
    }
}

/// Without characters that would change the terminal: names and reasons may come from foreign files.
pub fn printable(text: &str) -> String {
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
        print_json(Code::Usage, &message);
    }
    ExitCode::from(Code::Usage.number())
}

fn print_json(code: Code, message: &str) {
    println!("{:#}", json!({"error": {"reason": format!("{code:?}"), "message": message, "exitCode": code.number()}}));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_no_control_characters() {
        assert_eq!(printable("a\u{1b}[2Jb\0\r\nü"), "a\\u{1b}[2Jb\\u{0}\\r\nü");
    }

    #[test]
    fn documented_codes_are_the_codes() {
        let page = include_str!("../../../docs/exit-codes.md");
        for code in Code::ALL {
            let row = format!("| {} | `{code:?}` |", code.number());
            assert!(page.contains(&row), "docs/exit-codes.md has no row {row}");
        }
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
