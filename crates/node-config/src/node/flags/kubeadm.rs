//! `--kubeadm-flags`: the flags that kubeadm, or a join, wrote for this machine into `kubeadm-flags.env`.
//!
//! systemd reads that file as one of variables, and takes the value apart at blanks. On Windows nothing does, so this program reads it itself,
//! in the same way (systemd.exec(5), `EnvironmentFile=`; systemd.service(5), `$FOO` as a word of its own).

use std::io::{self, Read as _};
use std::path::Path;

use crate::document::ConfigError;

pub(super) const NAME: &str = "kubeadm-flags";
/// kubeadm's variable.
const VARIABLE: &str = "KUBELET_KUBEADM_ARGS";
/// Bytes that a file of flags may have.
const LARGEST: u64 = 64 << 10;

/// Puts the flags of the file in the place of the flag that names it: what stands behind it counts more. A file that there is not has none.
pub(super) fn expand(args: impl IntoIterator<Item = String>) -> Result<Vec<String>, ConfigError> {
    let mut expanded = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some(path) = named(&arg) else {
            expanded.push(arg);
            continue;
        };
        let path = match path {
            Some(path) => path.to_owned(),
            None => args.next().ok_or_else(|| ConfigError::NoArgument(NAME.to_owned()))?,
        };
        let of_file = read(Path::new(&path))?.map(|text| words(&text)).unwrap_or_default();
        if of_file.iter().any(|arg| named(arg).is_some()) {
            return Err(ConfigError::Refused {
                name: format!("--{NAME}={path}"),
                reason: "the file names another file of flags: give that one".into(),
            });
        }
        expanded.extend(of_file);
    }
    Ok(expanded)
}

/// The value of this flag, where it stands in the same argument.
fn named(arg: &str) -> Option<Option<&str>> {
    let body = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'))?;
    let (name, value) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value)));
    (name.replace('_', "-") == NAME).then_some(value)
}

fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.display().to_string(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        return Err(ConfigError::File { path: path.display().to_string(), source: Box::new(ConfigError::TooLarge("64 KiB")) });
    }
    Ok(Some(kube_rules::decode_text(&bytes)))
}

/// The flags in a text of `kubeadm-flags.env`.
#[must_use]
pub fn words(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let value = lines.filter_map(|line| line.strip_prefix(VARIABLE)?.strip_prefix('=')).next_back();
    split(&unquoted(value.unwrap_or_default()))
}

/// The value without the quotes around it. In double ones a backslash takes the meaning away from quotes and backslashes.
fn unquoted(value: &str) -> String {
    let value = value.trim();
    if let Some(inner) = value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        return inner.to_owned();
    }
    let Some(inner) = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return value.to_owned() };
    let (mut text, mut chars) = (String::new(), inner.chars().peekable());
    while let Some(c) = chars.next() {
        match chars.peek() {
            Some(next @ ('"' | '\\' | '$' | '`')) if c == '\\' => {
                text.push(*next);
                chars.next();
            }
            _ => text.push(c),
        }
    }
    text
}

/// Words between blanks; quotes hold a word together, and go.
fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut is_word) = (Vec::new(), String::new(), None, false);
    for c in text.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => word.push(c),
            None if matches!(c, '"' | '\'') => (quote, is_word) = (Some(c), true),
            None if c.is_whitespace() => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
            }
            None => {
                word.push(c);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::flags::{Options, Program};

    #[test]
    fn the_file_is_read_as_systemd_reads_it() {
        let cases: [(&str, &[&str]); 9] = [
            ("KUBELET_KUBEADM_ARGS=\"\"\n", &[]),
            ("", &[]),
            ("OTHER=\"--v=4\"\n", &[]),
            (
                "KUBELET_KUBEADM_ARGS=\"--hostname-override=win01 --register-with-taints=os=windows:NoSchedule\"\n",
                &["--hostname-override=win01", "--register-with-taints=os=windows:NoSchedule"],
            ),
            (r#"KUBELET_KUBEADM_ARGS="--root-dir=D:\\k --node-labels=\"a=b c\"""#, &[r"--root-dir=D:\k", "--node-labels=a=b c"]),
            ("# a remark\r\nKUBELET_KUBEADM_ARGS='--v=4  --node-ip=::1'\r\n", &["--v=4", "--node-ip=::1"]),
            ("KUBELET_KUBEADM_ARGS=--v=4", &["--v=4"]),
            ("KUBELET_KUBEADM_ARGS=\"--v=2\"\nKUBELET_KUBEADM_ARGS=\"--v=3 --resolv-conf=''\"", &["--v=3", "--resolv-conf="]),
            ("KUBELET_KUBEADM_ARGS=\"--v=2", &["--v=2"]),
        ];
        for (text, expected) in cases {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn flags_of_the_file_count_where_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeadm-flags.env");
        let named = format!("--kubeadm-flags={}", path.display());
        let parse = |args: &[&str]| Options::parse(Program::Kubelet, args.iter().map(|arg| (*arg).to_owned()));
        let pods = |args: &[&str]| parse(args).unwrap().config.kubelet.max_pods;
        assert_eq!(pods(&["--max-pods=3", &named]), 3, "a file that there is not has no flags");
        std::fs::write(&path, "KUBELET_KUBEADM_ARGS=\"--max-pods=7\"").unwrap();
        assert_eq!(pods(&["--max-pods=3", &named]), 7);
        assert_eq!(pods(&[&named, "--max-pods=3"]), 3);
        assert_eq!(pods(&["--kubeadm_flags", &path.display().to_string()]), 7);
        std::fs::write(&path, format!("KUBELET_KUBEADM_ARGS=\"{named}\"")).unwrap();
        assert!(parse(&[&named]).unwrap_err().to_string().contains("the file names another file of flags"));
        std::fs::write(&path, "KUBELET_KUBEADM_ARGS=\"--surprise\"").unwrap();
        assert_eq!(parse(&[&named]).unwrap_err().to_string(), "unknown flag: --surprise; see --help");
        std::fs::write(&path, " ".repeat(1 << 17)).unwrap();
        assert!(matches!(parse(&[&named]), Err(ConfigError::File { .. })));
        assert!(matches!(parse(&["--kubeadm-flags"]), Err(ConfigError::NoArgument(_))));
    }
}
