//! Command lines as Windows has them: one text, which each program takes apart itself.

/// One argument, so quoted that `CommandLineToArgvW` and the C library read it back.
pub fn quote(argument: &str) -> String {
    if !argument.is_empty() && !argument.contains([' ', '\t', '\n', '\u{b}', '"']) {
        return argument.to_owned();
    }
    let mut quoted = String::from('"');
    let mut backslashes = 0;
    for c in argument.chars() {
        match c {
            '\\' => backslashes += 1,
            '"' => {
                quoted.extend(std::iter::repeat_n('\\', backslashes + 1));
                backslashes = 0;
            }
            _ => backslashes = 0,
        }
        quoted.push(c);
    }
    // Before the closing quote they would count double.
    quoted.extend(std::iter::repeat_n('\\', backslashes));
    quoted.push('"');
    quoted
}

/// The command line of a list of arguments.
pub fn join<S: AsRef<str>>(argv: &[S]) -> String {
    argv.iter().map(|argument| quote(argument.as_ref())).collect::<Vec<_>>().join(" ")
}

/// The command line of a container. `escaped`: the image says that the first of its own words is a command line already,
/// which holds only where that word is in use.
pub fn line<S: AsRef<str>>(argv: &[S], escaped: bool) -> String {
    match argv.split_first() {
        Some((first, rest)) if escaped => {
            let mut line = first.as_ref().to_owned();
            if !rest.is_empty() {
                line.push(' ');
                line.push_str(&join(rest));
            }
            line
        }
        _ => join(argv),
    }
}

/// The program that a command line names: its first word, without quotes.
pub fn program(line: &str) -> &str {
    let line = line.trim_start_matches([' ', '\t']);
    match line.strip_prefix('"') {
        Some(rest) => rest.split('"').next().unwrap_or_default(),
        None => line.split([' ', '\t']).next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As documented for the C library since 2008.
    fn parse(line: &str) -> Vec<String> {
        let (mut argv, mut current, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
        let chars: Vec<char> = line.chars().collect();
        let mut at = 0;
        while at < chars.len() {
            let slashes = chars[at..].iter().take_while(|c| **c == '\\').count();
            at += slashes;
            match chars.get(at) {
                Some('"') => {
                    current.extend(std::iter::repeat_n('\\', slashes / 2));
                    any = true;
                    if slashes % 2 == 1 {
                        current.push('"');
                    } else {
                        quoted = !quoted;
                    }
                    at += 1;
                }
                Some(c @ (' ' | '\t')) if !quoted => {
                    current.extend(std::iter::repeat_n('\\', slashes));
                    if any || !current.is_empty() {
                        argv.push(std::mem::take(&mut current));
                    }
                    any = false;
                    let _ = c;
                    at += 1;
                }
                other => {
                    current.extend(std::iter::repeat_n('\\', slashes));
                    current.extend(other);
                    at += 1;
                }
            }
        }
        if any || !current.is_empty() {
            argv.push(current);
        }
        argv
    }

    #[test]
    fn quoted_arguments_are_read_back() {
        assert_eq!(join(&["cmd", "/S", "/C", "echo hi"]), r#"cmd /S /C "echo hi""#);
        assert_eq!(quote(""), "\"\"");
        assert_eq!(quote(r"C:\Program Files\"), r#""C:\Program Files\\""#);
        assert_eq!(quote(r#"say "x""#), r#""say \"x\"""#);
        assert_eq!(quote(r"C:\plain\"), r"C:\plain\");
    }

    proptest::proptest! {
        #[test]
        fn whatever_they_are(argv in proptest::collection::vec(r#"[a \\"\t%&ä]{0,8}"#, 1..5)) {
            proptest::prop_assert_eq!(parse(&join(&argv)), argv);
        }
    }

    #[test]
    fn an_escaped_first_word_is_a_command_line() {
        let words = [r#"cmd /S /C "echo %A%""#, "b c"];
        assert_eq!(line(&words, true), r#"cmd /S /C "echo %A%" "b c""#);
        assert_eq!(line(&words[..1], true), words[0]);
        assert_eq!(line(&["a b"], false), r#""a b""#);
    }

    #[test]
    fn the_program_is_the_first_word() {
        for (line, wanted) in [("cmd /c x", "cmd"), (r#" "C:\a b\x.exe" y"#, r"C:\a b\x.exe"), ("x.exe", "x.exe"), ("", ""), ("\"open", "open")] {
            assert_eq!(program(line), wanted, "{line}");
        }
    }
}
