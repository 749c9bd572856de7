//! `$(NAME)` expansion in command, args and env values (upstream third_party/forked/golang/expansion).

/// Expands `$(NAME)` with `lookup`; an unknown name stays as written, `$$` becomes `$`, anything
/// else after `$` is kept.
pub fn expand(input: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vars(name: &str) -> Option<String> {
        match name {
            "A" => Some("a".into()),
            "REF" => Some("$(A)".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn expansion_follows_upstream() {
        for (input, output) in [
            ("whole $(A)", "whole a"),
            ("$$", "$"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$(A)", "$$(A)"),
            ("$(REF)", "$(A)"),
            ("x$(EMPTY)y", "xy"),
            ("$(NOPE)", "$(NOPE)"),
            ("$(A", "$(A"),
            ("$((A)", "$((A)"),
            ("$(A))", "a)"),
            ("$", "$"),
            ("a$", "a$"),
            ("$x$(A)", "$xa"),
            ("$é", "$é"),
            ("$()", "$()"),
            ("--$(A)--$(A)", "--a--a"),
        ] {
            assert_eq!(expand(input, vars), output, "{input}");
        }
    }

    proptest! {
        #[test]
        fn text_without_dollar_is_untouched(s in "[^$]*") {
            prop_assert_eq!(expand(&s, vars), s);
        }

        #[test]
        fn doubled_dollars_escape_everything(s in ".*") {
            prop_assert_eq!(expand(&s.replace('$', "$$"), vars), s);
        }
    }
}
