//! A runtime's version as the Node shows it (upstream kuberuntime_manager.go `newRuntimeVersion`, apimachinery util/version).

/// The version alone: a semantic one as it is, of others the numbers before anything else, `1.6.20` of Debian's `1.6.20~ds1`. A text that is
/// no version is `Unknown`.
pub(super) fn shown(text: &str) -> String {
    semantic(text).or_else(|| generic(text)).unwrap_or_else(|| "Unknown".to_owned())
}

/// Numbers with dots between, and what follows them.
fn split(text: &str) -> Option<(Vec<&str>, &str)> {
    let text = text.trim_start();
    let text = text.strip_prefix('v').unwrap_or(text);
    let (mut numbers, mut rest) = (Vec::new(), text);
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            break;
        }
        numbers.push(&rest[..digits]);
        rest = &rest[digits..];
        match rest.strip_prefix('.').filter(|more| more.starts_with(|c: char| c.is_ascii_digit())) {
            Some(more) => rest = more,
            None => break,
        }
    }
    (!numbers.is_empty()).then_some((numbers, rest))
}

fn has_no_leading_zero(number: &str) -> bool {
    number == "0" || !number.starts_with('0')
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn join(numbers: &[&str]) -> Option<String> {
    let numbers: Option<Vec<String>> = numbers.iter().map(|text| number(text).map(|n| n.to_string())).collect();
    numbers.map(|numbers| numbers.join("."))
}

/// Two numbers or more, the first without a leading zero.
fn generic(text: &str) -> Option<String> {
    let (numbers, _) = split(text)?;
    (numbers.len() >= 2 && has_no_leading_zero(numbers[0])).then(|| join(&numbers)).flatten()
}

/// Three numbers, a pre-release after a hyphen, and build metadata after a plus.
fn semantic(text: &str) -> Option<String> {
    let (numbers, rest) = split(text)?;
    if numbers.len() != 3 || !numbers.iter().all(|number| has_no_leading_zero(number)) {
        return None;
    }
    let rest = rest.trim_end();
    let (pre, build) = match rest.split_once('+') {
        Some((pre, build)) => (pre, Some(build)),
        None => (rest, None),
    };
    let is_list = |list: &str| list.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'));
    let pre = if pre.is_empty() { None } else { Some(pre.strip_prefix('-')?) };
    let numbered = |part: &str| number(part).is_none() || has_no_leading_zero(part);
    if !pre.is_none_or(|pre| is_list(pre) && pre.split('.').all(numbered)) || !build.is_none_or(is_list) {
        return None;
    }
    let with = |mark: &str, text: Option<&str>| text.map(|text| format!("{mark}{text}")).unwrap_or_default();
    Some(format!("{}{}{}", join(&numbers)?, with("-", pre), with("+", build)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_shown_as_upstream_shows_them() {
        for (text, want) in [
            ("1.6.20~ds1", "1.6.20"),
            ("v1.7.13", "1.7.13"),
            ("2.0.0-rc.3", "2.0.0-rc.3"),
            ("v2.1.0-beta.0+build.5", "2.1.0-beta.0+build.5"),
            ("1.6.20+unknown", "1.6.20+unknown"),
            ("1.6.20-0ubuntu1", "1.6.20-0ubuntu1"),
            ("1.6.20-01", "1.6.20"),
            ("1.6.20_x", "1.6.20"),
            ("1.6", "1.6"),
            ("1.06.2", "1.6.2"),
            ("1.2.3.4", "1.2.3.4"),
            ("  1.30.0  ", "1.30.0"),
            ("1.30.", "1.30"),
            ("7", "Unknown"),
            ("01.2", "Unknown"),
            ("", "Unknown"),
            ("dev", "Unknown"),
            ("99999999999999999999.1", "Unknown"),
        ] {
            assert_eq!(shown(text), want, "{text:?}");
        }
    }
}
