//! Figures, their limits, and how a benchmark program ends.
//!
//! Every program measures into the tables of one [`Report`]. All tables are printed, whatever passes its limit or fails; the program's exit
//! code says whether anything did.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::machine::{self, Processors};

/// The least share of stolen time that a table mentions, in percent.
const NOTICEABLE: f64 = 1.0;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amount {
    value: f64,
    unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Unit {
    Seconds,
    Megabytes,
    Mebibytes,
    Count,
    Percent,
    Times,
    GigabitsPerSecond,
}

impl Amount {
    pub fn time(time: Duration) -> Self {
        Self { value: time.as_secs_f64(), unit: Unit::Seconds }
    }

    /// Memory, in millions of bytes.
    pub fn megabytes(bytes: u64) -> Self {
        Self { value: bytes as f64 / 1e6, unit: Unit::Megabytes }
    }

    /// Memory, in units of 2^20 bytes.
    pub fn mebibytes(kib: u64) -> Self {
        Self { value: kib as f64 / 1024.0, unit: Unit::Mebibytes }
    }

    /// A number of things.
    pub fn count(count: usize) -> Self {
        Self { value: count as f64, unit: Unit::Count }
    }

    /// Hundredths of something.
    pub fn percent(percent: f64) -> Self {
        Self { value: percent, unit: Unit::Percent }
    }

    /// A multiple of something.
    pub fn times(times: f64) -> Self {
        Self { value: times, unit: Unit::Times }
    }

    /// A throughput.
    pub fn bits_per_second(bits: f64) -> Self {
        Self { value: bits / 1e9, unit: Unit::GigabitsPerSecond }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        match self.unit {
            Unit::Seconds if value < 0.1 => write!(f, "{:.3} ms", value * 1e3),
            Unit::Seconds => write!(f, "{value:.2} s"),
            Unit::Megabytes => write!(f, "{value:.1} MB"),
            Unit::Mebibytes => write!(f, "{value:.1} MiB"),
            Unit::Count => write!(f, "{value:.0}"),
            Unit::Percent if value < 10.0 => write!(f, "{value:.2} %"),
            Unit::Percent => write!(f, "{value:.0} %"),
            Unit::Times => write!(f, "{value:.3} x"),
            Unit::GigabitsPerSecond => write!(f, "{value:.1} Gbit/s"),
        }
    }
}

/// What a figure may be, in the figure's own unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// No more than this.
    AtMost(Amount),
    /// No less than this.
    AtLeast(Amount),
    /// No limit: the figure explains another one, or is another program's.
    Background,
}

impl Limit {
    fn holds(self, measured: Amount) -> bool {
        // Not a number holds no limit.
        match self {
            Self::AtMost(most) => measured.unit == most.unit && measured.value <= most.value,
            Self::AtLeast(least) => measured.unit == least.unit && measured.value >= least.value,
            Self::Background => true,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "{most}"),
            Self::AtLeast(least) => write!(f, "≥ {least}"),
            Self::Background => Ok(()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Figure {
    name: String,
    measured: Amount,
    /// What the figure was made of; printed behind it.
    detail: String,
    limit: Limit,
}

impl Figure {
    fn holds(&self) -> bool {
        self.limit.holds(self.measured)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, measured, detail, limit } = self;
        let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
        let verdict = if self.holds() { "" } else { " **passed**" };
        write!(f, "| {name} | {measured}{detail} | {limit}{verdict} |")
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(Vec<Figure>);

impl Figures {
    pub fn add(&mut self, name: impl Into<String>, measured: Amount, limit: Limit) {
        self.add_detailed(name, measured, "", limit);
    }

    /// A figure with what it was made of.
    pub fn add_detailed(&mut self, name: impl Into<String>, measured: Amount, detail: impl Into<String>, limit: Limit) {
        self.0.push(Figure { name: name.into(), measured, detail: detail.into(), limit });
    }

    /// A figure that must not be above `most`, a value in its unit.
    pub fn at_most(&mut self, name: impl Into<String>, measured: Amount, most: f64) {
        self.add(name, measured, Limit::AtMost(Amount { value: most, ..measured }));
    }

    /// A figure without a limit.
    pub fn background(&mut self, name: impl Into<String>, measured: Amount) {
        self.add(name, measured, Limit::Background);
    }

    /// A time that must not be longer than `most`.
    pub fn time(&mut self, name: impl Into<String>, measured: Duration, most: Duration) {
        self.add(name, Amount::time(measured), Limit::AtMost(Amount::time(most)));
    }

    /// A time without a limit.
    pub fn background_time(&mut self, name: impl Into<String>, measured: Duration) {
        self.background(name, Amount::time(measured));
    }

    /// The names of figures that have a limit.
    #[cfg(test)]
    pub fn limited(&self) -> Vec<&str> {
        self.0.iter().filter(|figure| figure.limit != Limit::Background).map(|figure| figure.name.as_str()).collect()
    }
}

/// What a program measured, and whether all of it is as it should be.
pub struct Report {
    out: Box<dyn std::io::Write>,
    over: Vec<String>,
    failed: Vec<String>,
}

impl Report {
    /// A report on standard output, which begins with machine and commit.
    pub fn begin() -> Self {
        let mut report = Self::resume();
        report.say(&format!("{}\n", machine::describe()));
        report
    }

    /// A report of a program's part, in a process of its own: the first process has printed where it runs.
    pub fn resume() -> Self {
        Self::to(Box::new(std::io::stdout()))
    }

    fn to(out: Box<dyn std::io::Write>) -> Self {
        Self { out, over: Vec::new(), failed: Vec::new() }
    }

    fn say(&mut self, text: &str) {
        // A closed pipe changes nothing: the exit code counts.
        let _ = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
    }

    /// Measures a table and prints it. What was measured before a failure is printed too.
    pub fn table(&mut self, title: &str, measure: impl FnOnce(&mut Figures) -> Result<()>) {
        let mut figures = Figures::default();
        let before = Processors::now();
        let outcome = measure(&mut figures);
        let stolen = Processors::now().stolen_since(before);
        let rows: String = figures.0.iter().map(|figure| format!("{figure}\n")).collect();
        if !figures.0.is_empty() {
            self.say(&format!("| {title} | measured | limit |\n| --- | ---: | ---: |\n{rows}"));
        }
        if stolen >= NOTICEABLE {
            self.say(&format!(
                "{stolen:.0} % of the processors' time went to other machines of the host meanwhile (steal): times are longer for it.\n"
            ));
        }
        self.over.extend(figures.0.into_iter().filter(|figure| !figure.holds()).map(|figure| figure.name));
        self.part(title, outcome);
    }

    /// Takes the outcome of something that prints by itself.
    pub fn part(&mut self, name: &str, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.failed.push(format!("cannot measure {name}: {error:#}"));
        }
    }

    /// Says what is over its limit or failed. The exit code is not zero when anything is.
    pub fn end(self) -> ExitCode {
        ExitCode::from(self.verdict())
    }

    fn verdict(self) -> u8 {
        self.failed.iter().for_each(|failure| eprintln!("bench: {failure}"));
        if !self.over.is_empty() {
            eprintln!("bench: limits passed: {}", self.over.join("; "));
        }
        u8::from(!self.over.is_empty() || !self.failed.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use anyhow::bail;

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn verdict(measure: impl FnOnce(&mut Figures) -> Result<()>) -> (u8, String) {
        let page = Page::default();
        let mut report = Report::to(Box::new(page.clone()));
        report.table("first", measure);
        report.table("second", |figures| {
            figures.background("kubectl's own start", Amount::count(3));
            Ok(())
        });
        let verdict = report.verdict();
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("| kubectl's own start | 3 |  |"), "the tables after a bad one are printed too: {text}");
        (verdict, text)
    }

    #[test]
    fn a_figure_over_its_limit_makes_the_exit_code_non_zero() {
        let memory = |bytes| {
            move |figures: &mut Figures| -> Result<()> {
                figures.at_most("PSS", Amount::megabytes(bytes), 15.0);
                Ok(())
            }
        };
        assert_eq!(verdict(memory(15_000_000)).0, 0);
        let (code, text) = verdict(memory(15_100_000));
        assert_eq!(code, 1);
        assert!(text.contains("| PSS | 15.1 MB | 15.0 MB **passed** |"), "{text}");
        let share = |percent| {
            move |figures: &mut Figures| -> Result<()> {
                figures.add("share", Amount::percent(percent), Limit::AtLeast(Amount::percent(90.0)));
                Ok(())
            }
        };
        assert_eq!((verdict(share(90.0)).0, verdict(share(89.0)).0, verdict(share(f64::NAN)).0), (0, 1, 1));
        let late = |figures: &mut Figures| -> Result<()> {
            figures.time("up", Duration::from_millis(1501), Duration::from_millis(1500));
            Ok(())
        };
        assert_eq!(verdict(late).0, 1);
        assert_eq!(
            verdict(|figures| {
                figures.add("unit", Amount::count(1), Limit::AtMost(Amount::percent(5.0)));
                Ok(())
            })
            .0,
            1,
            "units differ"
        );
    }

    #[test]
    fn a_table_that_fails_shows_what_it_has_and_the_exit_code_is_non_zero() {
        let (code, text) = verdict(|figures| {
            figures.background_time("first answer", Duration::from_micros(817));
            bail!("the pod is gone")
        });
        assert_eq!(code, 1);
        assert!(text.contains("| first answer | 0.817 ms |  |"), "{text}");
    }

    #[test]
    fn amounts_are_written_in_their_units() {
        let texts = [
            Amount::time(Duration::from_millis(1500)),
            Amount::megabytes(11_200_000),
            Amount::mebibytes(1536),
            Amount::percent(0.1),
            Amount::percent(102.0),
            Amount::times(1.05),
            Amount::bits_per_second(21.6e9),
        ]
        .map(|amount| amount.to_string());
        assert_eq!(texts, ["1.50 s", "11.2 MB", "1.5 MiB", "0.10 %", "102 %", "1.050 x", "21.6 Gbit/s"]);
    }
}
