//! The tables of docs/service-proxy.md say what each proxy mode does. This crate takes their cells from tests that passed.
//!
//! - [`rows`] declares the tables: the wording of each row, and what each mode claims.
//! - [`proved`] is the last line of a test. It adds the row and the mode to the file that `MULLION_PROOFS` names.
//! - `make unit` starts with an empty file, runs the tests and compares the page with what they proved (`parity check`).
//!   `make docs-tables` writes the page instead (`parity write`). Both remove the file: a proof counts for one run only.
//!
//! A cell that claims something without a proof reads [`UNPROVED`], so the page differs and the check fails.

pub mod page;
pub mod rows;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::Location;
use std::path::Path;

pub use Mode::{Hns, Nftables, Userspace};

/// Names the file that proofs are added to. Without it, tests record nothing.
pub const FILE: &str = "MULLION_PROOFS";

/// What a cell says that claims something when no test of its mode proved it.
pub const UNPROVED: &str = "no test passed";

/// A proxy mode, which is a column of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Load balancers of the Host Networking Service (`--proxy-mode=kernelspace`).
    Hns,
    /// Data maps of nftables.
    Nftables,
    /// This process carries the bytes.
    Userspace,
}

impl Mode {
    /// In the order of the columns.
    pub const ALL: [Self; 3] = [Hns, Nftables, Userspace];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hns => "HNS",
            Nftables => "nftables",
            Userspace => "user space",
        })
    }
}

/// Records that a test of `mode` proved these rows, each named as [`rows`] names it. Call it as the last statement of the test: a test
/// that fails before proves nothing, and a test that fails after it ends `make unit` before anything is compared.
///
/// # Panics
/// When there is no such row, when the row claims nothing of this mode, and when the file cannot be written.
#[track_caller]
pub fn proved(mode: Mode, rows: &[&str]) {
    let caller = Location::caller();
    let mut lines = String::new();
    for row in rows {
        if let Err(reason) = rows::check(row, mode) {
            panic!("{reason}");
        }
        lines += &format!("{mode}\t{row}\t{}:{}\n", caller.file(), caller.line());
    }
    if let Some(file) = std::env::var_os(FILE) {
        // One write to the end of a file is never mixed with another process's.
        let added = OpenOptions::new().append(true).create(true).open(&file).and_then(|mut file| file.write_all(lines.as_bytes()));
        added.unwrap_or_else(|error| panic!("cannot record proofs in {}: {error}; {FILE} names a file that tests can write", file.display()));
    }
}

/// The cells that tests proved: mode and row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proofs(BTreeSet<(Mode, String)>);

impl Proofs {
    /// Reads the records of one run.
    ///
    /// # Errors
    /// When there are none, and when a line is none of [`proved`]'s.
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read proofs {}: {error}; run the tests with {FILE} naming this file", file.display()))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let line = |line: &str| {
            let mut parts = line.split('\t');
            let mode = parts.next().and_then(|name| Mode::ALL.into_iter().find(|mode| mode.to_string() == name));
            match (mode, parts.next(), parts.next()) {
                (Some(mode), Some(row), Some(_)) => rows::check(row, mode).map(|()| (mode, row.to_owned())),
                _ => Err(format!("cannot read proof {line:?}: it has no mode, row and place; run the tests again")),
            }
        };
        text.lines().map(line).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a test of `mode` proved `row`.
    pub fn has(&self, mode: Mode, row: &str) -> bool {
        self.0.contains(&(mode, row.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{Cell, FEATURES};

    #[test]
    fn a_proof_counts_for_its_own_mode_and_a_broken_record_for_none() {
        let row = FEATURES.iter().find(|row| row.cells.iter().all(|cell| matches!(cell, Cell::Yes))).unwrap().name;
        let proofs = Proofs::parse(&format!("HNS\t{row}\tsrc/a.rs:7\nHNS\t{row}\tsrc/b.rs:9\n")).unwrap();
        assert_eq!(Mode::ALL.map(|mode| proofs.has(mode, row)), [true, false, false]);
        assert_eq!(Proofs::parse(""), Ok(Proofs::default()));
        for broken in [format!("HNS\t{row}\n"), format!("other\t{row}\tsrc/a.rs:7\n"), "HNS\tno such row\tsrc/a.rs:7\n".to_owned(), "HN".to_owned()] {
            assert!(Proofs::parse(&broken).is_err(), "{broken:?}");
        }
        assert!(Proofs::read(Path::new("/nonexistent/proofs")).unwrap_err().starts_with("cannot read proofs /nonexistent/proofs: "));
    }

    #[test]
    #[should_panic(expected = "there is no row \"ClusterIPs of all sorts\"")]
    fn a_row_that_does_not_exist_cannot_be_proved() {
        proved(Hns, &["ClusterIPs of all sorts"]);
    }

    #[test]
    #[should_panic(expected = "claims nothing of HNS")]
    fn a_row_that_says_no_cannot_be_proved() {
        proved(Hns, &["A Service without backends refuses at once"]);
    }
}
