//! Accounts of Windows containers: `runAsUserName` of pods, `USER` of images.

use serde::{Deserialize, Serialize};

/// An account that every Windows container has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Account {
    /// `ContainerAdministrator`: the default.
    #[default]
    Administrator,
    /// `ContainerUser`: no administrator.
    User,
    /// `NT AUTHORITY\SYSTEM`
    System,
    /// `NT AUTHORITY\LOCAL SERVICE`: no administrator.
    LocalService,
    /// `NT AUTHORITY\NETWORK SERVICE`: no administrator.
    NetworkService,
}

const CONTAINER: &str = "User Manager";
const SYSTEM: &str = "NT AUTHORITY";

/// Each with its domain and the names that it is known by; programs see the first.
const ACCOUNTS: &[(Account, &str, &[&str])] = &[
    (Account::Administrator, CONTAINER, &["ContainerAdministrator"]),
    (Account::User, CONTAINER, &["ContainerUser"]),
    (Account::System, SYSTEM, &["SYSTEM", "LocalSystem"]),
    (Account::LocalService, SYSTEM, &["LOCAL SERVICE", "LocalService"]),
    (Account::NetworkService, SYSTEM, &["NETWORK SERVICE", "NetworkService"]),
];

/// No account of that name; the message begins with the words of hcsshim and Windows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "hcs::System::CreateProcess: failure in a Windows system call: The user name or password is incorrect. (0x52e) (user {0:?}: simulated containers \
     have ContainerAdministrator, ContainerUser and NT AUTHORITY's SYSTEM, LOCAL SERVICE and NETWORK SERVICE; accounts that an image's build made are \
     not known)"
)]
pub struct AccountError(String);

impl Account {
    /// `[DOMAIN\]NAME`, without regard to case; an empty name is the administrator's.
    ///
    /// # Errors
    /// When there is no such account.
    pub fn find(name: &str) -> Result<Self, AccountError> {
        if name.is_empty() {
            return Ok(Self::default());
        }
        let (domain, user) = name.split_once('\\').map_or((None, name), |(domain, user)| (Some(domain), user));
        let is_its_domain = |own: &str| domain.is_none_or(|domain| domain == "." || domain.eq_ignore_ascii_case(own));
        let mut known = ACCOUNTS.iter().filter(|(_, own, names)| is_its_domain(own) && names.iter().any(|name| name.eq_ignore_ascii_case(user)));
        known.next().map(|(account, ..)| *account).ok_or_else(|| AccountError(name.to_owned()))
    }

    /// As the system calls it.
    pub fn name(self) -> &'static str {
        ACCOUNTS.iter().find(|(account, ..)| *account == self).map_or("", |(_, _, names)| names[0])
    }

    /// Whether it is no administrator.
    pub fn is_limited(self) -> bool {
        matches!(self, Self::User | Self::LocalService | Self::NetworkService)
    }

    /// The variables `USERDOMAIN` and `USERNAME`. The system's own account is the computer's.
    pub fn names(self, computer: &str) -> (&'static str, String) {
        match self {
            Self::Administrator | Self::User => (CONTAINER, self.name().to_owned()),
            Self::System | Self::NetworkService => ("WORKGROUP", format!("{computer}$")),
            Self::LocalService => (SYSTEM, self.name().to_owned()),
        }
    }

    /// Its profile's directory, below drive C.
    pub fn profile(self) -> &'static str {
        match self {
            Self::Administrator => r"users\ContainerAdministrator",
            Self::User => r"users\ContainerUser",
            Self::System => r"windows\system32\config\systemprofile",
            Self::LocalService => r"windows\ServiceProfiles\LocalService",
            Self::NetworkService => r"windows\ServiceProfiles\NetworkService",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_in_any_spelling() {
        for (name, account) in [
            ("", Account::Administrator),
            ("ContainerAdministrator", Account::Administrator),
            ("containeruser", Account::User),
            (r"User Manager\ContainerUser", Account::User),
            (r".\ContainerUser", Account::User),
            (r"NT AUTHORITY\SYSTEM", Account::System),
            ("system", Account::System),
            (r"nt authority\network service", Account::NetworkService),
            ("LocalService", Account::LocalService),
        ] {
            assert_eq!(Account::find(name), Ok(account), "{name}");
        }
        for name in ["nobody", r"NT AUTHORITY\ContainerUser", r"CORP\SYSTEM", "FakeUser", "Administrator"] {
            let refused = Account::find(name).unwrap_err().to_string();
            assert!(refused.contains("The user name or password is incorrect.") && refused.contains(&format!("{name:?}")), "{refused}");
        }
    }

    #[test]
    fn each_account_has_its_own_profile() {
        let profiles: std::collections::BTreeSet<_> = ACCOUNTS.iter().map(|(account, ..)| account.profile()).collect();
        assert_eq!(profiles.len(), ACCOUNTS.len());
        assert_eq!(Account::System.names("WEB-1"), ("WORKGROUP", "WEB-1$".to_owned()));
        assert!(Account::User.is_limited() && !Account::System.is_limited() && !Account::default().is_limited());
    }
}
