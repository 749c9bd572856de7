//! `whoami [/user]`: the container's account with its domain, as Windows knows accounts of containers.

use super::{Streams, api};

/// Accounts of containers: how the system names them, domain, name and SID.
const ACCOUNTS: &[(&str, &str, &str, &str)] = &[
    ("ContainerAdministrator", "user manager", "containeradministrator", "S-1-5-93-2-1"),
    ("ContainerUser", "user manager", "containeruser", "S-1-5-93-2-2"),
    ("SYSTEM", "nt authority", "system", "S-1-5-18"),
    ("LOCAL SERVICE", "nt authority", "local service", "S-1-5-19"),
    ("NETWORK SERVICE", "nt authority", "network service", "S-1-5-20"),
];

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    let Some(name) = api::user_name() else {
        let _ = writeln!(streams.err, "ERROR: Unable to get the user name.\r");
        return 1;
    };
    match report(&name, args) {
        Ok(text) => {
            let _ = write!(streams.out, "{text}");
            0
        }
        Err(words) => {
            let _ = writeln!(streams.err, "ERROR: {words}\r");
            1
        }
    }
}

fn report(user: &str, args: &[String]) -> Result<String, String> {
    let known = ACCOUNTS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(user));
    let (_, domain, name, sid) = known.ok_or_else(|| format!("'{user}' is no account of containers."))?;
    let account = format!("{domain}\\{name}");
    let option = args.first().map(|option| option.to_ascii_lowercase().replacen('-', "/", 1));
    match option.as_deref() {
        None => Ok(format!("{account}\r\n")),
        Some("/user") => {
            let width = account.len().max(9);
            let rule = |width: usize| "=".repeat(width);
            Ok(format!(
                "\r\nUSER INFORMATION\r\n----------------\r\n\r\n{:width$} SID\r\n{} {}\r\n{account:width$} {sid}\r\n",
                "User Name",
                rule(width),
                rule(sid.len())
            ))
        }
        Some(option) => Err(format!("'{option}' is not supported here: this whoami knows /user only.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_have_their_domains() {
        assert_eq!(report("ContainerUser", &[]).unwrap(), "user manager\\containeruser\r\n");
        assert_eq!(report("system", &[]).unwrap(), "nt authority\\system\r\n");
        let text = report("ContainerAdministrator", &["/USER".to_owned()]).unwrap();
        assert!(text.ends_with("user manager\\containeradministrator S-1-5-93-2-1\r\n"), "{text}");
        assert!(report("root", &[]).is_err() && report("SYSTEM", &["/priv".to_owned()]).is_err());
    }
}
