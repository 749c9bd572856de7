//! Prometheus' exposition formats: what a registry of prometheus-client holds, as the scraper asks for it.
//!
//! prometheus-client writes OpenMetrics alone. Upstream's components, and so their scrapers, speak Prometheus' text format too, which is
//! also what a request without `Accept` gets. There the family of a counter is called `x_total` like its samples, `le` of a histogram is
//! written as `1` instead of `1.0`, and nothing marks the end. [`encode`] translates those lines; samples stay as they are.

use std::fmt;
use std::fmt::Write as _;

use http::{HeaderMap, header};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, GaugeValueEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry};

/// A format of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format, version 0.0.4.
    #[default]
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that the header `Accept` prefers, as Prometheus' own libraries negotiate: a named format wins by its quality, anything
    /// else gets text.
    pub fn accepted(headers: &HeaderMap) -> Self {
        let ranges = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let mut best = (0.0, Self::Text);
        for (format, quality) in ranges.filter_map(Self::of_range) {
            if quality > best.0 {
                best = (quality, format);
            }
        }
        best.1
    }

    /// The format that one media range names, and its quality.
    fn of_range(range: &str) -> Option<(Self, f32)> {
        let mut parts = range.split(';').map(str::trim);
        let (format, versions) = match parts.next()?.to_ascii_lowercase().as_str() {
            "application/openmetrics-text" => (Self::OpenMetrics, "1.0.0"),
            "text/plain" => (Self::Text, "0.0.4"),
            _ => return None,
        };
        let mut quality = 1.0;
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim_end().to_ascii_lowercase().as_str() {
                "q" => quality = value.trim().parse().ok()?,
                "version" if value.trim() != versions => return None,
                _ => {}
            }
        }
        Some((format, quality))
    }

    /// The header `Content-Type` of the format.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Registers a metric whose help is written as it is: [`Registry::register`] ends it with a full stop, which upstream's have not.
/// A counter's `name` is without `_total`.
pub fn register(registry: &mut Registry, name: &'static str, help: &'static str, metric: impl Metric) {
    registry.register_collector(Box::new(Described { name, help, metric: Box::new(metric) }));
}

/// Writes a family of counters from a collector; `name` is without `_total`.
pub fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (L, V)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    samples.into_iter().try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None))
}

#[derive(Debug)]
struct Described {
    name: &'static str,
    help: &'static str,
    metric: Box<dyn Metric>,
}

impl Collector for Described {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if self.metric.is_empty() {
            return Ok(());
        }
        self.metric.encode(encoder.encode_descriptor(self.name, self.help, None, self.metric.metric_type())?)
    }
}

/// A value that carries the time of its measurement, as the kubelet's `/metrics/resource` has it: milliseconds in text, seconds in
/// OpenMetrics. prometheus-client has no such values, but writes values one after the other.
#[derive(Clone, Copy, Debug)]
pub struct At<N> {
    /// The value.
    pub value: N,
    /// Milliseconds since 1970.
    pub millis: i64,
    /// What is written.
    pub format: Format,
}

impl<N: EncodeGaugeValue> EncodeGaugeValue for At<N> {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        self.value.encode(encoder)?;
        match self.format {
            Format::Text => EncodeGaugeValue::encode(&self.millis, encoder),
            Format::OpenMetrics => EncodeGaugeValue::encode(&(self.millis as f64 / 1e3), encoder),
        }
    }
}

impl<N: EncodeCounterValue> EncodeCounterValue for At<N> {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        self.value.encode(encoder)?;
        match self.format {
            Format::Text => EncodeCounterValue::encode(&u64::try_from(self.millis).unwrap_or_default(), encoder),
            Format::OpenMetrics => EncodeCounterValue::encode(&(self.millis as f64 / 1e3), encoder),
        }
    }
}

/// Everything that is registered, in a format.
pub fn encode(registry: &Registry, format: Format) -> String {
    let mut openmetrics = String::with_capacity(8192);
    // Writing into memory does not fail, and every metric has a text.
    let _ = text::encode(&mut openmetrics, registry);
    match format {
        Format::Text => plain(&openmetrics),
        Format::OpenMetrics => openmetrics,
    }
}

/// OpenMetrics as Prometheus' text format.
fn plain(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len() + 256);
    let (mut help, mut kind) = ("", "");
    for line in openmetrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, of)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kind = of;
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                same => ("", same),
            };
            let _ = writeln!(text, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            sample(&mut text, line, kind == "histogram");
        }
    }
    text
}

/// One sample; the bound of a histogram's bucket is written as Go writes it.
fn sample(text: &mut String, line: &str, histogram: bool) {
    let bound = line.split_once("le=\"").filter(|_| histogram).and_then(|(before, rest)| Some((before, rest.split_once('"')?)));
    match bound.and_then(|(before, (bound, after))| Some((before, bound.strip_suffix(".0")?, after))) {
        Some((before, bound, after)) => drop(writeln!(text, "{before}le=\"{bound}\"{after}")),
        None => drop(writeln!(text, "{line}")),
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::MetricType;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;

    use super::*;

    fn accepted(accept: &str) -> Format {
        Format::accepted(&HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]))
    }

    #[test]
    fn accept_header_chooses_the_format() {
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Text);
        for text in [
            "*/*",
            "text/html",
            "text/plain",
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=2.0.0",
            "text/plain;version=0.0.4;q=0.9, application/openmetrics-text;q=0.5",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=much",
        ] {
            assert_eq!(accepted(text), Format::Text, "{text}");
        }
        // As Prometheus 2 and 3 send it.
        for openmetrics in [
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
             text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            "Application/OpenMetrics-Text",
        ] {
            assert_eq!(accepted(openmetrics), Format::OpenMetrics, "{openmetrics}");
        }
    }

    #[test]
    fn both_formats_hold_the_same_metrics() {
        let mut registry = Registry::default();
        let changes = Family::<[(&'static str, &'static str); 1], Counter>::default();
        changes.get_or_create(&[("kind", "a\"b")]).inc_by(2);
        let seconds = Histogram::new([0.5, 1.0]);
        seconds.observe(0.25);
        let ready: Gauge = Gauge::default();
        ready.set(1);
        register(&mut registry, "changes", "Changes", changes);
        register(&mut registry, "duration_seconds", "Duration", seconds);
        register(&mut registry, "ready", "Whether it is ready.", ready);
        register(&mut registry, "none", "Nothing yet", Family::<[(&'static str, &'static str); 1], Counter>::default());
        let samples = [
            "changes_total{kind=\"a\\\"b\"} 2",
            "duration_seconds_sum 0.25",
            "duration_seconds_count 1",
            "duration_seconds_bucket{le=\"0.5\"} 1",
            "duration_seconds_bucket{le=\"1\"} 1",
            "duration_seconds_bucket{le=\"+Inf\"} 1",
            "ready 1",
        ];
        let [changes, seconds @ .., ready] = samples;
        let text = format!(
            "# HELP changes_total Changes\n# TYPE changes_total counter\n{changes}\n\
             # HELP duration_seconds Duration\n# TYPE duration_seconds histogram\n{}\n\
             # HELP ready Whether it is ready.\n# TYPE ready gauge\n{ready}\n",
            seconds.join("\n")
        );
        assert_eq!(encode(&registry, Format::Text), text);
        let openmetrics = text.replace("P changes_total", "P changes").replace("E changes_total", "E changes").replace("\"1\"", "\"1.0\"");
        assert_eq!(encode(&registry, Format::OpenMetrics), openmetrics + "# EOF\n");
    }

    /// A counter and a gauge with a time.
    #[derive(Debug)]
    struct Measured(Format);

    impl Collector for Measured {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let (millis, format) = (1_700_000_000_123, self.0);
            let mut counter = encoder.encode_descriptor("cpu_seconds", "[STABLE] CPU", None, MetricType::Counter)?;
            counter.encode_family(&[("pod", "p")])?.encode_counter::<[(&str, &str); 0], _, f64>(&At { value: 0.5, millis, format }, None)?;
            let mut gauge = encoder.encode_descriptor("memory_bytes", "[STABLE] Memory", None, MetricType::Gauge)?;
            gauge.encode_gauge(&At { value: 1024_u64, millis, format })
        }
    }

    #[test]
    fn values_carry_the_time_of_their_measurement() {
        let encoded = |format| {
            let mut registry = Registry::default();
            registry.register_collector(Box::new(Measured(format)));
            encode(&registry, format)
        };
        assert_eq!(
            encoded(Format::Text),
            "# HELP cpu_seconds_total [STABLE] CPU\n# TYPE cpu_seconds_total counter\ncpu_seconds_total{pod=\"p\"} 0.5 1700000000123\n\
             # HELP memory_bytes [STABLE] Memory\n# TYPE memory_bytes gauge\nmemory_bytes 1024 1700000000123\n"
        );
        let openmetrics = encoded(Format::OpenMetrics);
        assert!(openmetrics.contains("\ncpu_seconds_total{pod=\"p\"} 0.5 1700000000.123\n"), "{openmetrics}");
        assert!(openmetrics.contains("\nmemory_bytes 1024 1700000000.123\n"), "{openmetrics}");
    }
}
