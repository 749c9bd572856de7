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
/// All but changing the access list and the owner.
const MODIFY: &str = "0x1301bf";

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

/// For what is made with permission bits (upstream's Chmod, pkg/util/filesystem/util_windows.go): those for others are users' of the node and of
/// containers.
pub(super) fn of_mode(mode: u32) -> String {
    let mut text = sddl(&BTreeSet::new());
    let rights = match (mode & 0o005 != 0, mode & 0o002 != 0) {
        (_, true) => MODIFY,
        (true, false) => READ,
        (false, false) => return text,
    };
    for reader in [Reader::Users, Reader::ContainerAdministrator, Reader::ContainerUser] {
        let _ = write!(text, "(A;OICI;{rights};;;{})", reader.sid());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_for_others_are_for_users_and_containers() {
        let own = "D:P(A;OICI;FA;;;S-1-3-4)(A;OICI;FA;;;S-1-5-18)(A;OICI;FA;;;S-1-5-32-544)";
        for mode in [0o600, 0o700, 0o750, 0o770] {
            assert_eq!(of_mode(mode), own, "{mode:o}");
        }
        let with = |rights: &str| ["S-1-5-32-545", "S-1-5-93-2-1", "S-1-5-93-2-2"].map(|sid| format!("(A;OICI;{rights};;;{sid})")).concat();
        assert_eq!((of_mode(0o755), of_mode(0o644)), (own.to_owned() + &with("0x1200a9"), own.to_owned() + &with("0x1200a9")));
        assert_eq!((of_mode(0o777), of_mode(0o666)), (own.to_owned() + &with("0x1301bf"), own.to_owned() + &with("0x1301bf")));
    }

    #[test]
    fn nobody_but_the_named_reads_a_volume() {
        let own = "D:P(A;OICI;FA;;;S-1-3-4)(A;OICI;FA;;;S-1-5-18)(A;OICI;FA;;;S-1-5-32-544)";
        assert_eq!(sddl(&BTreeSet::new()), own);
        let usual = BTreeSet::from([Reader::ContainerUser, Reader::ContainerAdministrator]);
        let text = sddl(&usual);
        assert_eq!(text, format!("{own}(A;OICI;0x1200a9;;;S-1-5-93-2-1)(A;OICI;0x1200a9;;;S-1-5-93-2-2)"), "neither users of the node nor everyone");
    }
}
