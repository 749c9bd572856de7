use proptest::prelude::*;

use super::*;

#[test]
fn operators_become_conditions() {
    for (command, expected) in [
        ("a && b", "call& a & (if errorlevel 0 if not errorlevel 1 (b))"),
        ("a||b", "call& a& (if not errorlevel 0 cd *: >nul 2>nul)& (if errorlevel 1 (call& b))"),
        ("a&b && c", "a&call& b & (if errorlevel 0 if not errorlevel 1 (c))"),
        ("a && b & c", "call& a & (if errorlevel 0 if not errorlevel 1 (b ))& c"),
        ("a >x 2>&1 && b", "call& a >x 2>&1 & (if errorlevel 0 if not errorlevel 1 (b))"),
        ("a | b && c", "call& a |b & (if errorlevel 0 if not errorlevel 1 (c))"),
        // Parentheses of a text, and what quotes and `^` hide.
        ("echo (a) && echo (b)", "call& echo ^(a^) & (if errorlevel 0 if not errorlevel 1 (echo ^(b^)))"),
        ("echo \"(a && b)\" && c", "call& echo \"(a && b)\" & (if errorlevel 0 if not errorlevel 1 (c))"),
        ("echo ^&^& && c", "call& echo ^&^& & (if errorlevel 0 if not errorlevel 1 (c))"),
        ("(a && b) > x", "(call& a & (if errorlevel 0 if not errorlevel 1 (b))) > x"),
        // What belongs to a loop or to a condition.
        ("for %i in (1 2) do a && b", "for %i in (1 2) do (call& a & (if errorlevel 0 if not errorlevel 1 (b)))"),
        (
            "FOR /F \"tokens=1\" %i in ('x ^| y') DO @(a && b)",
            "FOR /F \"tokens=1\" %i in ('x ^| y') DO (call& a & (if errorlevel 0 if not errorlevel 1 (b)))",
        ),
        ("if exist \"a b\" c && d", "if exist \"a b\" (call& c & (if errorlevel 0 if not errorlevel 1 (d)))"),
        (
            "if /i not \"%A%\"==\"x\" (a && b) else c && d",
            "if /i not \"%A%\"==\"x\" (call& a & (if errorlevel 0 if not errorlevel 1 (b))) else \
             (call& c & (if errorlevel 0 if not errorlevel 1 (d)))",
        ),
        ("if %N% gtr 3 a && b", "if %N% gtr 3 (call& a & (if errorlevel 0 if not errorlevel 1 (b)))"),
        ("a && if 1 == 1 b", "call& a & (if errorlevel 0 if not errorlevel 1 (if 1 == 1 b))"),
        ("a && for %i in (1) do (b & c)", "call& a & (if errorlevel 0 if not errorlevel 1 (for %i in (1) do (b & c)))"),
    ] {
        assert_eq!(spelled_out(command).as_deref(), Some(expected), "{command}");
    }
}

#[test]
fn what_has_no_operators_or_cannot_be_followed_stays() {
    for command in [
        "",
        "a",
        "a & b | c",
        "echo \"a && b\"",
        "echo a ^&^& b",
        "if exist a b & c",
        // Not complete.
        "a &&",
        "&& a",
        "a && (b",
        "a && b ^",
        "a && && b",
        "if x && y",
        "for %i in (1 do a && b",
        // Where the reader's understanding ends.
        "rem a && b",
        "if a==a (b) & c && d",
        "if a like b c && d",
    ] {
        assert_eq!(spelled_out(command), None, "{command}");
    }
    let deep = format!("{}a && b{}", "(".repeat(40), ")".repeat(40));
    assert_eq!(spelled_out(&deep), None);
    let deep = format!("{}a && b", "if a==a ".repeat(400));
    assert_eq!(spelled_out(&deep), None);
    let long = format!("a && {}", "b".repeat(LONGEST));
    assert_eq!(spelled_out(&long), None);
}

/// Commands of a line, for two interpreters.
#[derive(Clone, Debug)]
enum Line {
    Command(Kind),
    And(Vec<Line>),
    Or(Vec<Line>),
    Sequence(Vec<Line>),
}

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Ok,
    Fails,
    Crashes,
    /// Well, and leaves the error level as it was.
    Silent,
}

const NAMES: [(&str, Kind); 4] = [("ok", Kind::Ok), ("fails", Kind::Fails), ("crashes", Kind::Crashes), ("silent", Kind::Silent)];

impl Line {
    /// The text, with numbered commands.
    fn text(&self, outer: u8, next: &mut u32) -> String {
        let (all, operator, own) = match self {
            Self::Command(kind) => {
                *next += 1;
                let name = NAMES.iter().find(|(_, of)| of == kind).unwrap().0;
                return format!("{name}{next}");
            }
            Self::Sequence(all) => (all, " & ", 0),
            Self::Or(all) => (all, " || ", 1),
            Self::And(all) => (all, " && ", 2),
        };
        let text = all.iter().map(|line| line.text(own + 1, next)).collect::<Vec<_>>().join(operator);
        if own < outer { format!("({text})") } else { text }
    }

    /// As on Windows: what runs; whether the line was well.
    fn windows(&self, next: &mut u32, runs: bool, trace: &mut Vec<u32>) -> bool {
        match self {
            Self::Command(kind) => {
                *next += 1;
                if runs {
                    trace.push(*next);
                }
                !matches!(kind, Kind::Fails | Kind::Crashes)
            }
            Self::Sequence(all) => all.iter().fold(true, |_, line| line.windows(next, runs, trace)),
            Self::And(all) => all.iter().fold(true, |well, line| {
                let is_well = line.windows(next, runs && well, trace);
                well && is_well
            }),
            Self::Or(all) => all.iter().fold(false, |well, line| {
                let is_well = line.windows(next, runs && !well, trace);
                well || is_well
            }),
        }
    }
}

/// Runs what is spelled out, as Wine's `cmd` does.
struct Wine<'a> {
    rest: &'a str,
    level: i32,
    trace: Vec<u32>,
}

impl Wine<'_> {
    fn all(&mut self, mut runs: bool) {
        loop {
            runs &= self.one(runs);
            self.rest = self.rest.trim_start();
            match self.rest.strip_prefix('&') {
                Some(rest) if !rest.starts_with('&') => self.rest = rest,
                _ => return,
            }
        }
    }

    /// Returns whether what follows in the block runs too.
    fn one(&mut self, runs: bool) -> bool {
        self.rest = self.rest.trim_start();
        if let Some(rest) = self.rest.strip_prefix('(') {
            self.rest = rest;
            self.all(runs);
            self.rest = self.rest.strip_prefix(')').expect("the end of a block");
            return true;
        }
        for (condition, holds) in [
            ("if errorlevel 0 ", self.level >= 0),
            ("if errorlevel 1 ", self.level >= 1),
            ("if not errorlevel 0 ", self.level < 0),
            ("if not errorlevel 1 ", self.level < 1),
        ] {
            if let Some(rest) = self.rest.strip_prefix(condition) {
                self.rest = rest;
                return self.one(runs && holds) && holds;
            }
        }
        let end = self.rest.replace(">nul 2>nul", "..........").find(['&', ')', '|']).unwrap_or(self.rest.len());
        let (command, rest) = self.rest.split_at(end);
        self.rest = rest;
        if !runs {
            return true;
        }
        let command = command.trim();
        match command {
            "call" => self.level = 0,
            "cd *: >nul 2>nul" => self.level = 1,
            _ => {
                let (name, kind) = NAMES.into_iter().find(|(name, _)| command.starts_with(name)).unwrap_or_else(|| panic!("{command}"));
                self.trace.push(command[name.len()..].parse().unwrap());
                self.level = match kind {
                    Kind::Ok => 0,
                    Kind::Fails => 5,
                    Kind::Crashes => -1_073_741_819,
                    Kind::Silent => self.level,
                };
            }
        }
        true
    }
}

fn lines() -> impl Strategy<Value = Line> {
    let kinds = prop::sample::select(vec![Kind::Ok, Kind::Fails, Kind::Crashes, Kind::Silent]);
    // A silent command leaves the level of the one before it in a sequence, whose end Wine's `if` then sees.
    let loud = prop::sample::select(vec![Kind::Ok, Kind::Fails, Kind::Crashes]).prop_map(Line::Command);
    let sequence = prop::collection::vec(loud, 2..4).prop_map(Line::Sequence);
    let leaf = prop_oneof![4 => kinds.prop_map(Line::Command), 1 => sequence];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![prop::collection::vec(inner.clone(), 2..4).prop_map(Line::And), prop::collection::vec(inner, 2..4).prop_map(Line::Or)]
    })
}

proptest! {
    #[test]
    fn the_same_commands_run_as_on_windows(line in lines()) {
        let text = line.text(0, &mut 0);
        let mut trace = Vec::new();
        let well = line.windows(&mut 0, true, &mut trace);
        if let Some(spelled) = spelled_out(&text) {
            let mut wine = Wine { rest: &spelled, level: 7, trace: Vec::new() };
            wine.all(true);
            prop_assert_eq!(wine.rest, "", "{} as {}", text, spelled);
            prop_assert_eq!(&wine.trace, &trace, "{} as {}", text, spelled);
            prop_assert_eq!(wine.level == 0, well, "{} as {}", text, spelled);
        } else {
            let is_long = text.len() > 300;
            prop_assert!(is_long || !(text.contains("&&") || text.contains("||")), "{} is not understood", text);
        }
    }

    #[test]
    fn any_text_is_read_to_an_end(text in "[a-c \"&|^()@]{0,40}|(if |for |rem |a==b |%i in |do |else |&& |\\|\\| |\\(|\\)|a |\"){0,20}") {
        if let Some(spelled) = spelled_out(&text) {
            prop_assert!(spelled.len() <= LONGEST);
        }
    }
}
