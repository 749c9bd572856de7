//! What a directory of pods' logs has to be (upstream pkg/kubelet/apis/config/validation).

use crate::ConfigError;

/// Checks a directory on the node, in the form of either system.
pub(super) fn check(dir: &str) -> Result<(), ConfigError> {
    let wrong = |what: &str| Err(ConfigError::Conflict(format!("invalid configuration: pod logs path {dir:?} must {what}: correct podLogsDir")));
    let below = match dir.as_bytes() {
        [drive, b':', b'/' | b'\\', ..] if drive.is_ascii_alphabetic() => &dir[3..],
        [b'/' | b'\\', ..] => &dir[1..],
        _ => return wrong("be absolute path"),
    };
    if below.split(['/', '\\']).any(|part| matches!(part, "" | "." | "..")) {
        return wrong("be normalized");
    }
    // As upstream's, so that the same file serves both.
    if dir.is_ascii() { Ok(()) } else { wrong("contain ASCII characters only") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_absolute_plain_and_ascii() {
        for good in ["/var/log/pods", r"C:\var\log\pods", "d:/logs"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("", "absolute"),
            ("logs", "absolute"),
            ("c:logs", "absolute"),
            ("/", "normalized"),
            ("/a//b", "normalized"),
            ("/a/../b", "normalized"),
            ("/a/", "normalized"),
            ("/lögs", "ASCII"),
        ] {
            let error = check(bad).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("podLogsDir"), "{bad}: {error}");
        }
    }
}
