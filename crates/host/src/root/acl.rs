//! Access lists of volumes on Windows, as text (SDDL).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Reader;

const OWNER: &str = "S-1-3-4";
const SYSTEM: &str = "S-1-5-18";
const ADMINISTRATORS: &str = "S-1-5-32-544";
const USERS: &str = "S-1-5-32-545";
/// Reading and executing.
const READ: &str = "0x1200a9";

impl Reader {
    /// The account's SID. Short names of SDDL are fewer where Wine reads them.
    fn sid(self) -> &'static str {
        match self {
            Reader::ContainerAdministrator => "S-1-5-93-2-1",
            Reader::ContainerUser => "S-1-5-93-2-2",
            Reader::LocalService => "S-1-5-19",
            Reader::NetworkService => "S-1-5-20",
            Reader::WebServer => "S-1-5-32-568",
            Reader::Users => USERS,
        }
    }
}

/// Everything for owner, SYSTEM and administrators; reading for these; nothing for anybody else, and nothing from the directory above.
pub(super) fn sddl(readers: &BTreeSet<Reader>) -> String {
    let mut text = "D:P".to_owned();
    for sid in [OWNER, SYSTEM, ADMINISTRATORS] {
        let _ = write!(text, "(A;OICI;FA;;;{sid})");
    }
    for reader in readers {
        let _ = write!(text, "(A;OICI;{READ};;;{})", reader.sid());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_but_the_named_reads_a_volume() {
        let own = "D:P(A;OICI;FA;;;S-1-3-4)(A;OICI;FA;;;S-1-5-18)(A;OICI;FA;;;S-1-5-32-544)";
        assert_eq!(sddl(&BTreeSet::new()), own);
        let usual = BTreeSet::from([Reader::ContainerUser, Reader::ContainerAdministrator]);
        let text = sddl(&usual);
        assert_eq!(text, format!("{own}(A;OICI;0x1200a9;;;S-1-5-93-2-1)(A;OICI;0x1200a9;;;S-1-5-93-2-2)"), "neither users of the node nor everyone");
    }
}
