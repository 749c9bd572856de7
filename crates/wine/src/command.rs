//! Windows command lines: one text, which each program parses itself.

mod chains;

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

/// The command line as Wine's `cmd` understands it, if it is one of `cmd`. What batch files hold stays as it is.
///
/// Wine 8 does not take `@(` behind `do` for the begin of a block, so that `&` in it ends the loop. The `@` says that the block is not to be
/// echoed, which Wine's `cmd` does not do anyway: it is left out. `&&` and `||`, which Wine 8 takes for `&`, are spelled out.
pub fn for_cmd(line: &str) -> String {
    let Some(Invocation { head, command, is_quoted }) = Invocation::read(line) else { return line.to_owned() };
    let plain = without_at_signs(&command);
    let spelled = chains::spelled_out(&plain).unwrap_or(plain);
    match (spelled == command, is_quoted) {
        (true, _) => line.to_owned(),
        (false, true) => format!("{head}\"{spelled}\""),
        (false, false) => format!("{head}{spelled}"),
    }
}

/// `cmd … /c COMMAND`
struct Invocation<'a> {
    /// Up to the option `/c` or `/k`, blanks behind it included.
    head: &'a str,
    command: String,
    /// Whether the command stands in quotes, which quote nothing in it.
    is_quoted: bool,
}

impl<'a> Invocation<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let name = program(line);
        let end = line.find(name)? + name.len();
        let file = name.rsplit(['\\', '/']).next().unwrap_or_default().to_ascii_lowercase();
        if !matches!(file.as_str(), "cmd" | "cmd.exe") {
            return None;
        }
        let mut rest = line[end..].trim_start_matches('"');
        let mut keeps_no_quotes = false;
        loop {
            rest = rest.trim_start_matches([' ', '\t']);
            let option = rest.strip_prefix('/')?.chars().next()?;
            match option.to_ascii_lowercase() {
                'c' | 'k' | 'r' => break,
                's' => keeps_no_quotes = true,
                _ => {}
            }
            let after = &rest[1 + option.len_utf8()..];
            // `/d/c` is as good as `/d /c`.
            rest = &after[after.find([' ', '\t', '/']).unwrap_or(after.len())..];
        }
        let command = rest[2..].trim_start_matches([' ', '\t']);
        let head = &line[..line.len() - command.len()];
        let quotes: Vec<usize> = command.match_indices('"').map(|(at, _)| at).collect();
        let (Some(0), Some(last)) = (quotes.first(), quotes.last().filter(|last| **last > 0)) else {
            return Some(Self { head, command: command.to_owned(), is_quoted: false });
        };
        // `cmd` leaves them only around the name of a program.
        let is_name = quotes.len() == 2 && !command[1..*last].contains(['&', '<', '>', '(', ')', '@', '^', '|']);
        if is_name && !keeps_no_quotes {
            return Some(Self { head, command: command.to_owned(), is_quoted: false });
        }
        Some(Self { head, command: [&command[1..*last], &command[last + 1..]].concat(), is_quoted: true })
    }
}

/// Leaves `@` out where it stands before a block behind `do`.
fn without_at_signs(command: &str) -> String {
    let (mut result, mut quoted, mut word) = (String::with_capacity(command.len()), false, String::new());
    // Whether the word before was `do`.
    let mut after_do = false;
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        let opens = || chars.as_str().trim_start_matches([' ', '\t']).starts_with('(');
        match c {
            '@' if after_do && !quoted && word.is_empty() && opens() => continue,
            ' ' | '\t' => {
                after_do = !quoted && (word.eq_ignore_ascii_case("do") || (word.is_empty() && after_do));
                word.clear();
            }
            '"' => {
                quoted = !quoted;
                word.push(c);
            }
            // `for %i in (1 2)do` is as good.
            ')' if !quoted => word.clear(),
            c => word.push(c),
        }
        result.push(c);
    }
    result
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
        fn any_arguments_are_read_back(argv in proptest::collection::vec(r#"[a \\"\t%&ä]{0,8}"#, 1..5)) {
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
    fn at_sign_before_a_block_is_left_out_for_wine() {
        for (line, expected) in [
            ("cmd /c \"for %i in (1 2) do @(echo a & echo b)\"", "cmd /c \"for %i in (1 2) do (echo a & echo b)\""),
            ("CMD.EXE /S /C for /L %i in (1,0,2) DO  @ (ver & ping x)", "CMD.EXE /S /C for /L %i in (1,0,2) DO   (ver & ping x)"),
            (r"C:\windows\system32\cmd.exe /k for %i in (1)do @(a)", r"C:\windows\system32\cmd.exe /k for %i in (1)do (a)"),
            ("cmd /c for %i in (1) do @echo (a) & b", "cmd /c for %i in (1) do @echo (a) & b"),
            ("cmd /c \"echo \"do @(\" & b\"", "cmd /c \"echo \"do @(\" & b\""),
            ("cmd /c redo @(a)", "cmd /c redo @(a)"),
            ("tool do @(a)", "tool do @(a)"),
        ] {
            assert_eq!(for_cmd(line), expected, "{line}");
        }
    }

    #[test]
    fn operators_of_a_command_line_are_spelled_out_for_wine() {
        let then = |a: &str, b: &str| format!("call& {a} & (if errorlevel 0 if not errorlevel 1 ({b}))");
        for (line, head, command, tail) in [
            ("cmd /c a && b", "cmd /c ", then("a", "b"), ""),
            (r#"cmd /d/s/c "a && b""#, r#"cmd /d/s/c ""#, then("a", "b"), "\""),
            (
                r#""C:\Windows\System32\cmd.exe" /V:ON /C "a "x y" && b" "#,
                r#""C:\Windows\System32\cmd.exe" /V:ON /C ""#,
                then("a \"x y\"", "b "),
                "\"",
            ),
            // These quotes are the program's.
            (r#"cmd /c "C:\a b.exe" && b"#, "cmd /c ", then(r#""C:\a b.exe""#, "b"), ""),
            (r#"cmd /s /c "C:\a b.exe" && b"#, r#"cmd /s /c ""#, then(r"C:\a b.exe", "b"), "\""),
            ("cmd /k a && b", "cmd /k ", then("a", "b"), ""),
        ] {
            assert_eq!(for_cmd(line), format!("{head}{command}{tail}"), "{line}");
        }
        for line in ["cmd", "cmd /c", "cmd /q", "cmd a && b", "tool /c a && b", "cmd /c \"a\"", "cmd /c \"", "cmd /\u{e4}", "cmd /c start a.bat & b"]
        {
            assert_eq!(for_cmd(line), line);
        }
    }

    #[test]
    fn the_program_is_the_first_word() {
        for (line, expected) in [("cmd /c x", "cmd"), (r#" "C:\a b\x.exe" y"#, r"C:\a b\x.exe"), ("x.exe", "x.exe"), ("", ""), ("\"open", "open")] {
            assert_eq!(program(line), expected, "{line}");
        }
    }
}
