//! Links of HTML pages that a proxy passes on (apimachinery/pkg/util/proxy/transport.go).
//!
//! A scanner of tags, not a parser of documents: it finds the values of attributes that hold links, and leaves every other byte as it is.

/// Tags and those of their attributes that hold links.
const LINKS: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements whose content is text up to their end tag.
const TEXT: [&str; 8] = ["iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"];

/// The page with each link replaced for which `replace` has another text. Links are given and taken as they are written in the page, with
/// entities.
pub fn rewrite(page: &[u8], replace: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let mut scanner = Scanner { page, at: 0, copied: 0, out: Vec::with_capacity(page.len()), replace };
    while let Some(open) = scanner.find(b"<", scanner.at) {
        scanner.at = open + 1;
        match page.get(open + 1) {
            Some(b'!') if page[open..].starts_with(b"<!--") => scanner.skip_past(b"-->", open + 4),
            Some(b'!' | b'/' | b'?') => scanner.skip_past(b">", open + 1),
            Some(letter) if letter.is_ascii_alphabetic() => scanner.tag(),
            _ => {}
        }
    }
    scanner.out.extend_from_slice(&page[scanner.copied..]);
    scanner.out
}

/// A text as it is written in a quoted attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&#34;").replace('\'', "&#39;").replace('<', "&lt;").replace('>', "&gt;")
}

struct Scanner<'a, F> {
    page: &'a [u8],
    at: usize,
    /// Everything before is in `out`.
    copied: usize,
    out: Vec<u8>,
    replace: F,
}

impl<F: Fn(&str) -> Option<String>> Scanner<'_, F> {
    fn find(&self, what: &[u8], from: usize) -> Option<usize> {
        let rest = self.page.get(from..)?;
        rest.windows(what.len()).position(|window| window == what).map(|at| from + at)
    }

    fn skip_past(&mut self, what: &[u8], from: usize) {
        self.at = self.find(what, from).map_or(self.page.len(), |at| at + what.len());
    }

    fn peek(&self) -> Option<u8> {
        self.page.get(self.at).copied()
    }

    fn skip(&mut self, skipped: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(&skipped) {
            self.at += 1;
        }
    }

    /// What follows up to one of the bytes that end it, in lower case.
    fn word(&mut self, ends: impl Fn(u8) -> bool) -> String {
        let from = self.at;
        self.skip(|byte| !ends(byte));
        String::from_utf8_lossy(&self.page[from..self.at]).to_ascii_lowercase()
    }

    /// A start tag: its name is next.
    fn tag(&mut self) {
        let name = self.word(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>'));
        let links = LINKS.iter().find(|(tag, _)| *tag == name).map_or(&[][..], |(_, links)| links);
        loop {
            self.skip(|byte| byte.is_ascii_whitespace() || byte == b'/');
            match self.peek() {
                None => return,
                Some(b'>') => break,
                Some(_) => self.attribute(links),
            }
        }
        self.at += 1;
        if TEXT.contains(&name.as_str()) {
            self.skip_text(&name);
        }
    }

    fn attribute(&mut self, links: &[&str]) {
        // An equals sign that begins an attribute is part of its name.
        let first = self.at;
        self.at += 1;
        self.skip(|byte| !byte.is_ascii_whitespace() && !matches!(byte, b'/' | b'>' | b'='));
        let name = String::from_utf8_lossy(&self.page[first..self.at]).to_ascii_lowercase();
        let after_name = self.at;
        self.skip(|byte| byte.is_ascii_whitespace());
        if self.peek() != Some(b'=') {
            self.at = after_name;
            return;
        }
        self.at += 1;
        self.skip(|byte| byte.is_ascii_whitespace());
        let quote = self.peek().filter(|byte| matches!(byte, b'"' | b'\''));
        let from = self.at + usize::from(quote.is_some());
        let to = match quote {
            Some(quote) => match self.find(&[quote], from) {
                Some(to) => to,
                None => return self.at = self.page.len(),
            },
            None => {
                self.skip(|byte| !byte.is_ascii_whitespace() && byte != b'>');
                self.at
            }
        };
        self.at = to + usize::from(quote.is_some());
        if links.contains(&name.as_str()) {
            self.replace(from, to, quote.is_none());
        }
    }

    fn replace(&mut self, from: usize, to: usize, bare: bool) {
        let Some(link) = std::str::from_utf8(&self.page[from..to]).ok().and_then(|link| (self.replace)(link)) else { return };
        let quote = if bare { "\"" } else { "" };
        self.out.extend_from_slice(&self.page[self.copied..from]);
        self.out.extend_from_slice(format!("{quote}{link}{quote}").as_bytes());
        self.copied = to;
    }

    /// Moves to the end tag of an element that contains text alone.
    fn skip_text(&mut self, name: &str) {
        let is_end =
            |rest: &[u8]| rest.starts_with(b"</") && rest.get(2..2 + name.len()).is_some_and(|own| own.eq_ignore_ascii_case(name.as_bytes()));
        while let Some(open) = self.find(b"<", self.at) {
            self.at = open;
            if is_end(&self.page[open..]) {
                return;
            }
            self.at += 1;
        }
        self.at = self.page.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rewritten(page: &str) -> String {
        let replace = |link: &str| link.starts_with('/').then(|| format!("/p{link}"));
        String::from_utf8(rewrite(page.as_bytes(), replace)).unwrap()
    }

    #[test]
    fn links_of_tags_are_replaced_and_nothing_else() {
        for (page, wanted) in [
            (r#"<a href="/x">/x</a>"#, r#"<a href="/p/x">/x</a>"#),
            ("<A\n HREF = '/x?a&amp;b' class=y>", "<A\n HREF = '/p/x?a&amp;b' class=y>"),
            ("<img alt=/a src=/b.png><br>", r#"<img alt=/a src="/p/b.png"><br>"#),
            (
                r#"<link/href="/a"/><script src="/b">"<a href='/c'>"</script><q cite="/d">"#,
                r#"<link/href="/p/a"/><script src="/p/b">"<a href='/c'>"</script><q cite="/p/d">"#,
            ),
            (r#"<!-- <a href="/x"> --><a href="/y">"#, r#"<!-- <a href="/x"> --><a href="/p/y">"#),
            (r#"<p href="/x"><a title="<a href=/z>" href="w">"#, r#"<p href="/x"><a title="<a href=/z>" href="w">"#),
            ("1 < 2 <a href='/x", "1 < 2 <a href='/x"),
            ("<a href>x<a =/x href=/y>", r#"<a href>x<a =/x href="/p/y">"#),
            ("<STYLE><a href=/x></style ><a href=/y>", r#"<STYLE><a href=/x></style ><a href="/p/y">"#),
        ] {
            assert_eq!(rewritten(page), wanted, "{page}");
        }
    }

    #[test]
    fn quotes_and_entities_of_a_prefix_are_escaped() {
        assert_eq!(escape("/a'b&c\"<d>"), "/a&#39;b&amp;c&#34;&lt;d&gt;");
    }

    proptest! {
        /// A page stays as it is, byte for byte, where no link is replaced.
        #[test]
        fn a_page_without_replacements_stays(page in "(<|>|/|a|A|script|href|=|\"|'|!--|-->|\\s|é){0,40}") {
            prop_assert_eq!(rewrite(page.as_bytes(), |_| None), page.as_bytes());
        }

        /// Replacing each link by itself changes nothing but the quotes of bare values.
        #[test]
        fn a_link_is_given_as_it_is_written(page in "(<a |<img |>|href=|src=|\"|'|x|/|\\s){0,40}") {
            let same = rewrite(page.as_bytes(), |link| Some(link.to_string()));
            let bare = |text: &[u8]| text.iter().filter(|byte| **byte != b'"').copied().collect::<Vec<u8>>();
            prop_assert_eq!(bare(&same), bare(page.as_bytes()));
        }
    }
}
