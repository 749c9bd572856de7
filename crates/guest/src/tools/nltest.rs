//! `nltest /PARENTDOMAIN`: the domain of the container's group managed service account.

use std::path::Path;

use super::{Streams, inside};

/// Where the runtime notes the domain of the container's credential specification, below the container's root on Linux.
pub const DOMAIN: &str = "etc/domain";

const USAGE: &str = "\r\nUsage: nltest [/OPTIONS]\r\n\r\n    /PARENTDOMAIN - Get the name of the parent domain of this machine\r\n\r\n\
                     Other options need a domain controller, which containers of simulated nodes do not reach.\r\n";
/// A name of DNS has no more.
const LONGEST: usize = 255;

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    run(args, &inside(DOMAIN), streams)
}

fn run(args: &[String], file: &Path, streams: &mut Streams<'_>) -> u8 {
    let option = args.first().map(|option| option.to_ascii_lowercase().replacen('-', "/", 1));
    if args.len() != 1 || option.as_deref() != Some("/parentdomain") {
        let _ = write!(streams.out, "{USAGE}");
        return 1;
    }
    match std::fs::read_to_string(file) {
        Ok(domain) if is_name(domain.trim()) => {
            let _ = write!(streams.out, "{}. (1)\r\nThe command completed successfully\r\n", domain.trim());
            0
        }
        _ => {
            let _ = write!(streams.out, "Getting parent domain failed: Status = 1355 0x54b ERROR_NO_SUCH_DOMAIN\r\n");
            1
        }
    }
}

fn is_name(domain: &str) -> bool {
    !domain.is_empty() && domain.len() <= LONGEST && domain.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(args: &[&str], file: &Path) -> (u8, String) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut out = Vec::new();
        let code = run(&args, file, &mut Streams { input: &mut std::io::empty(), out: &mut out, err: &mut std::io::sink() });
        (code, String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_parent_domain_is_the_credential_specifications() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("domain");
        for args in [&["/PARENTDOMAIN"], &["/parentdomain"], &["-ParentDomain"]] {
            assert_eq!(said(args, &file), (1, "Getting parent domain failed: Status = 1355 0x54b ERROR_NO_SUCH_DOMAIN\r\n".into()));
        }
        std::fs::write(&file, "contoso.org").unwrap();
        assert_eq!(said(&["/PARENTDOMAIN"], &file), (0, "contoso.org. (1)\r\nThe command completed successfully\r\n".into()));
        std::fs::write(&file, "contoso org\r\n").unwrap();
        assert_eq!(said(&["/PARENTDOMAIN"], &file).0, 1);
        for args in [&[][..], &["/dsgetdc:contoso.org"], &["/PARENTDOMAIN", "/x"]] {
            let (code, text) = said(args, &file);
            assert!(code == 1 && text.contains("/PARENTDOMAIN") && text.contains("domain controller"), "{text}");
        }
    }
}
