//! Prometheus' text format, as far as kubelets' `/metrics/resource` uses it.

/// One line: a metric with its labels.
#[derive(Debug, PartialEq)]
pub struct Line<'a> {
    pub name: &'a str,
    labels: &'a str,
    pub value: f64,
    /// Milliseconds since 1970, when the line says so.
    pub at: Option<i64>,
}

impl<'a> Line<'a> {
    /// A label's value. Names of objects need no escapes.
    pub fn label(&self, name: &str) -> &'a str {
        let mut rest = self.labels;
        while let Some((key, tail)) = rest.split_once("=\"") {
            let Some((value, tail)) = tail.split_once('"') else { break };
            if key.trim_start_matches([',', ' ']) == name {
                return value;
            }
            rest = tail;
        }
        ""
    }
}

/// The lines of a document; comments and what makes no sense are left out.
pub fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(parse)
}

fn parse(line: &str) -> Option<Line<'_>> {
    let (head, tail) = match line.split_once('{') {
        Some((name, rest)) => {
            let (labels, tail) = rest.rsplit_once('}')?;
            ((name, labels), tail)
        }
        None => {
            let (name, tail) = line.split_once(' ')?;
            ((name, ""), tail)
        }
    };
    let mut words = tail.split_whitespace();
    let value: f64 = words.next()?.parse().ok()?;
    let at = words.next().and_then(|word| word.parse().ok());
    value.is_finite().then_some(Line { name: head.0, labels: head.1, value, at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_survived(text in "[a-z_{}=\", 0-9.\n#]{0,200}") {
            for line in lines(&text) {
                let _ = (line.label("a"), line.label(""));
                prop_assert!(line.value.is_finite());
            }
        }
    }

    #[test]
    fn lines_are_taken_apart() {
        let text = "# HELP a b\na{container=\"c\",namespace=\"n\", pod=\"p\"} 1.5e3 1700000000123\nplain 2\nbroken\nworse{x=\"1\" 3\nnan NaN\n";
        let found: Vec<Line<'_>> = lines(text).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].label("container"), found[0].label("namespace"), found[0].label("pod"), found[0].label("none")), ("c", "n", "p", ""));
        assert_eq!((found[0].value, found[0].at), (1500.0, Some(1_700_000_000_123)));
        assert_eq!(found[1], Line { name: "plain", labels: "", value: 2.0, at: None });
    }
}
