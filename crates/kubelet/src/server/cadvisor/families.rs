//! The families of `/metrics/cadvisor`: names, help and labels are cAdvisor's (metrics/prometheus.go of upstream's vendored copy).

use std::fmt::Write as _;

use exposition::Format;

use crate::stats::usage::{Interface, Memory, Usage};

/// A file system that a container or the machine writes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Disk {
    /// `/dev/sda1`, or `C:`.
    pub device: String,
    pub used: u64,
    pub capacity: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// What is shown of one group or container.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// Labels as they are written, without braces.
    pub labels: String,
    /// Seconds since 1970.
    pub started: Option<u64>,
    pub usage: Usage,
    /// Whether [`Usage::bounds`] are known.
    pub bounded: bool,
    pub interfaces: Vec<Interface>,
    pub disks: Vec<Disk>,
    /// Names of the devices of [`Usage::io`], in its order.
    pub devices: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Kind {
    Counter,
    Gauge,
}

/// Takes a value with its own labels.
pub(super) type Put<'a> = &'a mut dyn FnMut(&[(&str, &str)], f64);

/// A family of samples.
pub(super) struct Family {
    pub name: &'static str,
    help: &'static str,
    kind: Kind,
    /// Whether samples carry the time of their measurement.
    timed: bool,
    values: fn(&Row, Put<'_>),
}

const fn counter(name: &'static str, help: &'static str, values: fn(&Row, Put<'_>)) -> Family {
    Family { name, help, kind: Kind::Counter, timed: true, values }
}

const fn gauge(name: &'static str, help: &'static str, values: fn(&Row, Put<'_>)) -> Family {
    Family { name, help, kind: Kind::Gauge, timed: true, values }
}

const fn bound(name: &'static str, help: &'static str, values: fn(&Row, Put<'_>)) -> Family {
    Family { name, help, kind: Kind::Gauge, timed: false, values }
}

fn one(put: Put<'_>, value: Option<u64>) {
    if let Some(value) = value {
        put(&[], value as f64);
    }
}

fn seconds(put: Put<'_>, value: Option<u64>, unit: f64) {
    if let Some(value) = value {
        put(&[], value as f64 / unit);
    }
}

/// Nanoseconds and microseconds of a second.
const NANOS: f64 = 1e9;
const MICROS: f64 = 1e6;

fn memory(row: &Row, put: Put<'_>, value: fn(&Memory) -> Option<u64>) {
    one(put, row.usage.memory.as_ref().and_then(value));
}

/// Only of what has a quota, as cAdvisor.
fn throttled(row: &Row) -> Option<crate::stats::usage::Throttling> {
    row.usage.throttling.filter(|_| row.usage.bounds.quota.is_some())
}

fn interfaces(row: &Row, put: Put<'_>, value: fn(&Interface) -> Option<u64>) {
    for interface in &row.interfaces {
        if let Some(value) = value(interface) {
            put(&[("interface", &interface.name)], value as f64);
        }
    }
}

fn disks(row: &Row, put: Put<'_>, value: fn(&Disk) -> Option<u64>) {
    for disk in &row.disks {
        if let Some(value) = value(disk) {
            put(&[("device", &disk.device)], value as f64);
        }
    }
}

fn io(row: &Row, put: Put<'_>, value: fn(&crate::stats::usage::Io) -> u64) {
    for (io, device) in row.usage.io.iter().zip(&row.devices) {
        put(&[("device", device)], value(io) as f64);
    }
}

fn pressure(row: &Row, put: Put<'_>, of: usize, full: bool) {
    seconds(put, row.usage.pressure[of].map(|pressure| if full { pressure.full } else { pressure.some }), MICROS);
}

fn faults(row: &Row, put: Put<'_>) {
    let Some(memory) = &row.usage.memory else { return };
    for (kind, value) in [("pgfault", memory.faults), ("pgmajfault", memory.major_faults)] {
        for scope in ["container", "hierarchy"] {
            put(&[("failure_type", kind), ("scope", scope)], value as f64);
        }
    }
}

fn device_usage(row: &Row, put: Put<'_>) {
    for (io, device) in row.usage.io.iter().zip(&row.devices) {
        let (major, minor) = (io.device.0.to_string(), io.device.1.to_string());
        for (operation, value) in [("Read", io.read_bytes), ("Write", io.write_bytes)] {
            put(&[("device", device), ("major", &major), ("minor", &minor), ("operation", operation)], value as f64);
        }
    }
}

/// Time, processors and processes.
const PROCESSORS: &[Family] = &[
    bound("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", |row, put| one(put, row.started)),
    bound("container_spec_cpu_period", "CPU period of the container.", |row, put| one(put, row.bounded.then_some(row.usage.bounds.period))),
    bound("container_spec_cpu_quota", "CPU quota of the container.", |row, put| one(put, row.usage.bounds.quota)),
    bound("container_spec_cpu_shares", "CPU share of the container.", |row, put| one(put, row.bounded.then_some(row.usage.bounds.shares))),
    counter("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", |row, put| {
        seconds(put, row.usage.cpu.and_then(|cpu| cpu.user), NANOS)
    }),
    counter("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", |row, put| {
        seconds(put, row.usage.cpu.and_then(|cpu| cpu.system), NANOS)
    }),
    counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", |row, put| {
        if let Some(cpu) = row.usage.cpu.filter(|cpu| cpu.total > 0) {
            put(&[("cpu", "total")], cpu.total as f64 / NANOS);
        }
    }),
    counter("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", |row, put| {
        one(put, throttled(row).map(|own| own.periods))
    }),
    counter("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", |row, put| {
        one(put, throttled(row).map(|own| own.throttled))
    }),
    counter("container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.", |row, put| {
        seconds(put, throttled(row).map(|own| own.nanos), NANOS)
    }),
    counter("container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.", |row, put| {
        one(put, throttled(row).map(|own| own.bursts))
    }),
    counter("container_cpu_cfs_burst_seconds_total", "Total time duration the container has been bursted.", |row, put| {
        seconds(put, throttled(row).map(|own| own.burst_nanos), NANOS)
    }),
    gauge("container_processes", "Number of processes running inside the container.", |row, put| one(put, row.usage.processes)),
    gauge("container_threads", "Number of threads running inside the container", |row, put| one(put, row.usage.threads)),
    gauge("container_threads_max", "Maximum number of threads allowed inside the container, infinity if value is zero", |row, put| {
        one(put, row.usage.threads_max)
    }),
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
        |row, put| pressure(row, put, 0, true),
    ),
    counter(
        "container_pressure_cpu_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to CPU congestion.",
        |row, put| pressure(row, put, 0, false),
    ),
];

const MEMORY: &[Family] = &[
    bound("container_spec_memory_limit_bytes", "Memory limit for the container.", |row, put| {
        one(put, row.bounded.then_some(row.usage.bounds.memory))
    }),
    bound("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", |row, put| {
        one(put, row.bounded.then_some(row.usage.bounds.swap))
    }),
    bound("container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container.", |row, put| {
        one(put, row.bounded.then_some(row.usage.bounds.reservation))
    }),
    gauge("container_memory_cache", "Number of bytes of page cache memory.", |row, put| memory(row, put, |memory| memory.cache)),
    gauge("container_memory_rss", "Size of RSS in bytes.", |row, put| memory(row, put, |memory| memory.rss)),
    gauge("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", |row, put| memory(row, put, |memory| memory.kernel)),
    gauge("container_memory_mapped_file", "Size of memory mapped files in bytes.", |row, put| memory(row, put, |memory| memory.mapped)),
    gauge("container_memory_swap", "Container swap usage in bytes.", |row, put| memory(row, put, |memory| memory.swap)),
    counter("container_memory_failcnt", "Number of memory usage hits limits", |row, put| memory(row, put, |memory| memory.refused)),
    gauge("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", |row, put| {
        memory(row, put, |memory| Some(memory.usage))
    }),
    gauge("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", |row, put| memory(row, put, |memory| memory.most)),
    gauge("container_memory_working_set_bytes", "Current working set in bytes.", |row, put| memory(row, put, |memory| Some(memory.working_set))),
    gauge("container_memory_total_active_file_bytes", "Current total active file in bytes.", |row, put| {
        memory(row, put, |memory| memory.active_file)
    }),
    gauge("container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.", |row, put| {
        memory(row, put, |memory| memory.inactive_file)
    }),
    counter("container_memory_failures_total", "Cumulative count of memory allocation failures.", faults),
    counter("container_oom_events_total", "Count of out of memory events observed for the container", |row, put| {
        memory(row, put, |memory| memory.killed)
    }),
    counter(
        "container_pressure_memory_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to memory congestion.",
        |row, put| pressure(row, put, 1, true),
    ),
    counter(
        "container_pressure_memory_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to memory congestion.",
        |row, put| pressure(row, put, 1, false),
    ),
];

const FILES: &[Family] = &[
    gauge("container_fs_inodes_free", "Number of available Inodes", |row, put| disks(row, put, |disk| (disk.inodes > 0).then_some(disk.inodes_free))),
    gauge("container_fs_inodes_total", "Number of Inodes", |row, put| disks(row, put, |disk| (disk.inodes > 0).then_some(disk.inodes))),
    gauge("container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.", |row, put| {
        disks(row, put, |disk| Some(disk.capacity))
    }),
    gauge("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", |row, put| {
        disks(row, put, |disk| Some(disk.used))
    }),
    counter("container_fs_reads_bytes_total", "Cumulative count of bytes read", |row, put| io(row, put, |io| io.read_bytes)),
    counter("container_fs_reads_total", "Cumulative count of reads completed", |row, put| io(row, put, |io| io.reads)),
    counter("container_fs_writes_bytes_total", "Cumulative count of bytes written", |row, put| io(row, put, |io| io.write_bytes)),
    counter("container_fs_writes_total", "Cumulative count of writes completed", |row, put| io(row, put, |io| io.writes)),
    counter("container_blkio_device_usage_total", "Blkio Device bytes usage", device_usage),
    counter(
        "container_pressure_io_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to IO congestion.",
        |row, put| pressure(row, put, 2, true),
    ),
    counter(
        "container_pressure_io_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to IO congestion.",
        |row, put| pressure(row, put, 2, false),
    ),
];

const NETWORK: &[Family] = &[
    counter("container_network_receive_bytes_total", "Cumulative count of bytes received", |row, put| interfaces(row, put, |own| own.received[0])),
    counter("container_network_receive_packets_total", "Cumulative count of packets received", |row, put| {
        interfaces(row, put, |own| own.received[1])
    }),
    counter("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", |row, put| {
        interfaces(row, put, |own| own.received[2])
    }),
    counter("container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", |row, put| {
        interfaces(row, put, |own| own.received[3])
    }),
    counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", |row, put| interfaces(row, put, |own| own.sent[0])),
    counter("container_network_transmit_packets_total", "Cumulative count of packets transmitted", |row, put| {
        interfaces(row, put, |own| own.sent[1])
    }),
    counter("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", |row, put| {
        interfaces(row, put, |own| own.sent[2])
    }),
    counter("container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting", |row, put| {
        interfaces(row, put, |own| own.sent[3])
    }),
];

/// All families of containers.
pub(super) fn all() -> impl Iterator<Item = &'static Family> {
    [PROCESSORS, MEMORY, FILES, NETWORK].into_iter().flatten()
}

impl Family {
    /// Writes the samples of all rows; returns whether there are any.
    pub(super) fn write(&self, text: &mut String, rows: &[Row], millis: i64, format: Format) -> bool {
        let mut any = false;
        for row in rows {
            (self.values)(row, &mut |labels, value| {
                if !any {
                    head(text, self.name, self.help, self.kind, format);
                    any = true;
                }
                let time = self.timed.then_some(millis);
                sample(text, self.name, &row.labels, labels, value, time, format);
            });
        }
        any
    }
}

/// The lines before the samples of a family. OpenMetrics has no counter whose name does not end in `_total`.
pub(in crate::server) fn head(text: &mut String, name: &str, help: &str, kind: Kind, format: Format) {
    let (name, kind) = match (format, kind, name.strip_suffix("_total")) {
        (Format::OpenMetrics, Kind::Counter, Some(family)) => (family, "counter"),
        (Format::OpenMetrics, Kind::Counter, None) => (name, "unknown"),
        (Format::Text, Kind::Counter, _) => (name, "counter"),
        (_, Kind::Gauge, _) => (name, "gauge"),
    };
    let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", help.replace('\\', "\\\\").replace('\n', "\\n"));
}

/// One sample with labels that are written already, and its own.
pub(in crate::server) fn sample(text: &mut String, name: &str, base: &str, labels: &[(&str, &str)], value: f64, millis: Option<i64>, format: Format) {
    text.push_str(name);
    if !base.is_empty() || !labels.is_empty() {
        text.push('{');
        text.push_str(base);
        if !base.is_empty() && !labels.is_empty() {
            text.push(',');
        }
        write_labels(text, labels.iter().copied());
        text.push('}');
    }
    let _ = write!(text, " {value}");
    match (millis, format) {
        (None, _) => {}
        (Some(millis), Format::Text) => _ = write!(text, " {millis}"),
        (Some(millis), Format::OpenMetrics) => _ = write!(text, " {}", millis as f64 / 1e3),
    }
    text.push('\n');
}

/// Labels as they are written between braces.
pub(in crate::server) fn write_labels<'a>(text: &mut String, labels: impl IntoIterator<Item = (&'a str, &'a str)>) {
    for (at, (name, value)) in labels.into_iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for character in value.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::stats::usage::{Bounds, Cpu, Io, Pressure, Throttling};

    fn row() -> Row {
        Row {
            labels: "id=\"/a\"".to_owned(),
            started: Some(9),
            usage: Usage {
                cpu: Some(Cpu { total: 1_500_000_000, user: Some(1_000_000_000), system: Some(500_000_000) }),
                throttling: Some(Throttling { periods: 4, throttled: 2, nanos: 250_000_000, bursts: 0, burst_nanos: 0 }),
                memory: Some(Memory {
                    usage: 10,
                    working_set: 8,
                    most: Some(11),
                    cache: Some(2),
                    rss: Some(7),
                    swap: Some(0),
                    kernel: Some(1),
                    mapped: Some(1),
                    active_file: Some(1),
                    inactive_file: Some(2),
                    faults: 3,
                    major_faults: 1,
                    refused: Some(0),
                    killed: Some(1),
                }),
                threads: Some(2),
                threads_max: Some(0),
                processes: Some(1),
                io: vec![Io { device: (8, 0), read_bytes: 5, write_bytes: 6, reads: 1, writes: 2 }],
                pressure: [Some(Pressure { some: 2_000_000, full: 1_000_000 }); 3],
                bounds: Bounds { shares: 2, period: 100_000, quota: Some(50_000), memory: 64, swap: 0, reservation: 0 },
            },
            bounded: true,
            interfaces: vec![Interface { name: "eth0".into(), received: [1, 2, 3, 4].map(Some), sent: [5, 6, 7, 8].map(Some) }],
            disks: vec![Disk { device: "/dev/sda1".into(), used: 20, capacity: 100, inodes: 10, inodes_free: 4 }],
            devices: vec!["/dev/sda".into()],
        }
    }

    fn samples(row: Row) -> Vec<String> {
        let mut text = String::new();
        let rows = [row];
        all().for_each(|family| _ = family.write(&mut text, &rows, 1234, Format::Text));
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn a_group_shows_every_family_once() {
        let samples = samples(row());
        for line in [
            "container_start_time_seconds{id=\"/a\"} 9",
            "container_cpu_usage_seconds_total{id=\"/a\",cpu=\"total\"} 1.5 1234",
            "container_cpu_cfs_throttled_seconds_total{id=\"/a\"} 0.25 1234",
            "container_spec_cpu_quota{id=\"/a\"} 50000",
            "container_spec_memory_limit_bytes{id=\"/a\"} 64",
            "container_memory_working_set_bytes{id=\"/a\"} 8 1234",
            "container_memory_rss{id=\"/a\"} 7 1234",
            "container_memory_failures_total{id=\"/a\",failure_type=\"pgmajfault\",scope=\"hierarchy\"} 1 1234",
            "container_network_receive_packets_dropped_total{id=\"/a\",interface=\"eth0\"} 4 1234",
            "container_network_transmit_bytes_total{id=\"/a\",interface=\"eth0\"} 5 1234",
            "container_fs_usage_bytes{id=\"/a\",device=\"/dev/sda1\"} 20 1234",
            "container_fs_writes_bytes_total{id=\"/a\",device=\"/dev/sda\"} 6 1234",
            "container_blkio_device_usage_total{id=\"/a\",device=\"/dev/sda\",major=\"8\",minor=\"0\",operation=\"Read\"} 5 1234",
            "container_pressure_memory_stalled_seconds_total{id=\"/a\"} 1 1234",
        ] {
            assert!(samples.iter().any(|known| known == line), "{line} is missing in\n{}", samples.join("\n"));
        }
        let names: BTreeSet<&str> = all().map(|family| family.name).collect();
        assert_eq!(names.len(), all().count(), "a name twice");
        let shown: BTreeSet<&str> = samples.iter().map(|line| line.split('{').next().unwrap()).collect();
        assert_eq!(shown, names, "a family without a sample");
    }

    #[test]
    fn what_is_not_known_is_not_shown() {
        let mut own = row();
        own.usage = Usage {
            cpu: Some(Cpu { total: 5, ..Cpu::default() }),
            memory: Some(Memory { usage: 3, working_set: 2, ..Memory::default() }),
            ..Usage::default()
        };
        own.bounded = false;
        own.interfaces[0].received[1] = None;
        let samples = samples(own).join("\n");
        assert!(samples.contains("container_cpu_usage_seconds_total") && samples.contains("container_memory_working_set_bytes"));
        for missing in
            ["cfs", "user_seconds", "memory_cache", "spec_cpu", "spec_memory", "container_network_receive_packets_total", "processes", "pressure"]
        {
            assert!(!samples.contains(missing), "{missing} in\n{samples}");
        }
    }

    #[test]
    fn openmetrics_names_families_and_seconds() {
        let mut text = String::new();
        let rows = [row()];
        all()
            .filter(|family| matches!(family.name, "container_cpu_user_seconds_total" | "container_memory_failcnt" | "container_memory_rss"))
            .for_each(|family| {
                _ = family.write(&mut text, &rows, 1500, Format::OpenMetrics);
            });
        assert_eq!(
            text,
            "# HELP container_cpu_user_seconds Cumulative user cpu time consumed in seconds.\n# TYPE container_cpu_user_seconds counter\n\
             container_cpu_user_seconds_total{id=\"/a\"} 1 1.5\n\
             # HELP container_memory_rss Size of RSS in bytes.\n# TYPE container_memory_rss gauge\ncontainer_memory_rss{id=\"/a\"} 7 1.5\n\
             # HELP container_memory_failcnt Number of memory usage hits limits\n# TYPE container_memory_failcnt unknown\n\
             container_memory_failcnt{id=\"/a\"} 0 1.5\n"
        );
    }

    #[test]
    fn labels_are_escaped() {
        let mut text = String::new();
        write_labels(&mut text, [("a", "x\"y\\z\n"), ("b", "")]);
        assert_eq!(text, "a=\"x\\\"y\\\\z\\n\",b=\"\"");
    }
}
