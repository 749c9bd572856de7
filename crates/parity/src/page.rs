//! The page with its tables: each stands between two comments, and everything else is written by hand.

use std::fmt::Write as _;

use crate::rows::{BUGS, Cell, FEATURES, UPSTREAM_TESTS};
use crate::{Hns, Mode, Proofs, UNPROVED};

/// The page with the tables as rows and proofs have them.
///
/// # Errors
/// When the place of a table is missing.
pub fn filled(page: &str, proofs: &Proofs) -> Result<String, String> {
    let mut page = page.to_owned();
    for (name, table) in [("features", features(proofs)), ("bugs", bugs(proofs)), ("upstream-tests", upstream_tests(proofs))] {
        let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
        let place = page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
        let Some((before, after)) = place else { return Err(format!("the page has no place for the table {name:?}: write {begin}{end}")) };
        page = format!("{before}{begin}{table}{end}{after}");
    }
    Ok(page)
}

/// Lines that only one of the two has, in their order: first one's with `-`, second one's with `+`.
pub fn differences(first: &str, second: &str) -> Vec<String> {
    let only = |of: &str, other: &str, mark: char| -> Vec<String> {
        of.lines().filter(|line| !other.lines().any(|there| there == *line)).map(|line| format!("{mark} {line}")).collect()
    };
    let mut lines = [only(first, second, '-'), only(second, first, '+')].concat();
    if lines.is_empty() && first != second {
        lines.push("- its rows have another order".to_owned());
    }
    lines
}

fn cell(cell: Cell, yes: &'static str, proved: bool) -> &'static str {
    match cell {
        Cell::Yes | Cell::Shown(_) if !proved => UNPROVED,
        Cell::Yes => yes,
        Cell::Shown(text) | Cell::Not(text) => text,
    }
}

fn cells(row: &str, list: &[Cell; 3], yes: &'static str, proofs: &Proofs) -> String {
    let texts = Mode::ALL.iter().zip(list).map(|(mode, claim)| cell(*claim, yes, proofs.has(*mode, row)));
    texts.collect::<Vec<_>>().join(" | ")
}

fn features(proofs: &Proofs) -> String {
    let mut text = String::from("| feature | upstream on Windows | HNS | nftables | user space |\n| --- | --- | --- | --- | --- |\n");
    for row in FEATURES {
        let _ = writeln!(text, "| {} | {} | {} |", row.name, row.upstream, cells(row.name, &row.cells, "yes", proofs));
    }
    text
}

fn bugs(proofs: &Proofs) -> String {
    let mut text =
        String::from("| reported as | what happens with upstream's proxy | HNS | nftables | user space |\n| --- | --- | --- | --- | --- |\n");
    for row in BUGS {
        let links: Vec<String> = row.reports.iter().map(|report| link(report)).collect();
        let reports = if links.is_empty() { "its source".to_owned() } else { links.join(", ") };
        let _ = writeln!(text, "| {reports} | {} | {} |", row.what, cells(row.key(), &row.cells, "does not happen", proofs));
    }
    text
}

fn upstream_tests(proofs: &Proofs) -> String {
    let mut text = String::from("| upstream's test | HNS |\n| --- | --- |\n");
    for test in UPSTREAM_TESTS {
        let _ = writeln!(text, "| `{test}` | {} |", cell(Cell::Yes, "holds", proofs.has(Hns, test)));
    }
    text
}

/// A report as a link: `#N` is an issue of Kubernetes.
fn link(report: &str) -> String {
    let (repository, number) = report.split_once('#').unwrap_or((report, ""));
    let path = match repository {
        "" => "kubernetes/kubernetes",
        "website" => "kubernetes/website",
        "image-builder" => "kubernetes-sigs/image-builder",
        "Windows-Containers" => "microsoft/Windows-Containers",
        other => other,
    };
    format!("[{report}](https://github.com/{path}/issues/{number})")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "a\n<!-- features: begin -->\n<!-- features: end -->\n<!-- bugs: begin -->\n<!-- bugs: end -->\n\
        <!-- upstream-tests: begin -->\nSTALE\n<!-- upstream-tests: end -->\nz\n";

    #[test]
    fn cells_without_proof_do_not_say_yes() {
        let page = filled(EMPTY, &Proofs::default()).unwrap();
        assert!(page.starts_with("a\n") && page.ends_with("\nz\n") && !page.contains("STALE"), "{page}");
        for line in page.lines().filter(|line| line.starts_with("| ")) {
            // The first columns are the row's name and upstream's behaviour.
            let claims = |cell: &str| ["yes", "does not happen", "holds"].iter().any(|claim| cell.starts_with(claim));
            assert!(!line.split(" | ").skip(2).any(claims) && !line.ends_with("| holds |"), "{line}");
        }
        assert!(filled("no place", &Proofs::default()).is_err());
    }

    #[test]
    fn proof_changes_one_cell_and_the_difference_is_reported() {
        let row = FEATURES.iter().find(|row| row.cells.iter().all(|cell| matches!(cell, Cell::Yes))).unwrap().name;
        let before = filled(EMPTY, &Proofs::default()).unwrap();
        let after = filled(&before, &Proofs([(Mode::Nftables, row.to_owned())].into())).unwrap();
        let reported = differences(&before, &after);
        assert!(reported.len() == 2 && reported[0].ends_with(&format!("| {UNPROVED} | {UNPROVED} | {UNPROVED} |")), "{reported:?}");
        assert!(
            reported[1].starts_with(&format!("+ | {row} |")) && reported[1].ends_with(&format!("| {UNPROVED} | yes | {UNPROVED} |")),
            "{reported:?}"
        );
        assert_eq!((differences(&after, &after).len(), differences("a\nb", "b\na").len()), (0, 1));
    }

    #[test]
    fn reports_are_links() {
        assert_eq!(link("#113842"), "[#113842](https://github.com/kubernetes/kubernetes/issues/113842)");
        assert_eq!(link("website#17930"), "[website#17930](https://github.com/kubernetes/website/issues/17930)");
    }
}
