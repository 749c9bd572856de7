//! Formats of strings that custom resources may name (upstream: kube-openapi's strfmt).

use std::net::{Ipv4Addr, Ipv6Addr};

use kube_cel::formats::Format;
use kube_cel::{regexes, time};

/// The formats of strings that are checked, without dashes.
const KNOWN: [&str; 26] = [
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
    "k8sshortname",
    "k8slongname",
];

/// Whether upstream knows the format for values of the type.
pub fn is_known(ty: &str, format: &str) -> bool {
    match ty {
        "" | "string" => KNOWN.contains(&format.replace('-', "").as_str()),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// Whether the text has the format; formats that upstream does not know accept everything.
pub fn matches(format: &str, text: &str) -> bool {
    let regex = |pattern: &str| regexes::compile(pattern).is_ok_and(|regex| regex.is_match(text));
    let named = |name: &str| Format::named(name).is_some_and(|format| (format.check)(text).is_empty());
    match format.replace('-', "").as_str() {
        "uri" => named("uri"),
        "byte" => named("byte"),
        "date" => named("date"),
        "datetime" => text.is_empty() || time::parse_timestamp(text).is_some(),
        "duration" => is_duration(text),
        "email" => regex("^[^@\\s]+@[^@\\s]+$"),
        "hostname" => {
            text.len() <= 255
                && regex(
                    r"^([a-zA-Z0-9\p{L}]([a-zA-Z0-9\p{L}-]{0,61}[a-zA-Z0-9\p{L}])?)(\.[a-zA-Z0-9\p{L}]([a-zA-Z0-9\p{L}-]{0,61}[a-zA-Z0-9\p{L}])?)*\.?$",
                )
        }
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => regex("^([0-9a-fA-F]{2}[:-]){5,7}[0-9a-fA-F]{2}$|^([0-9a-fA-F]{4}\\.){2,3}[0-9a-fA-F]{4}$"),
        "uuid" => named("uuid"),
        "uuid3" => regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        "uuid4" => regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        "uuid5" => regex("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        "bsonobjectid" => regex("^[0-9a-fA-F]{24}$"),
        "ssn" => regex("^\\d{3}[- ]?\\d{2}[- ]?\\d{4}$"),
        "hexcolor" => regex("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
        "rgbcolor" => regex("^rgb\\(\\s*(\\d{1,3})\\s*,\\s*(\\d{1,3})\\s*,\\s*(\\d{1,3})\\s*\\)$"),
        "k8sshortname" => named("dns1123Label"),
        "k8slongname" => named("dns1123Subdomain"),
        _ => true,
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let most = match (address.parse::<Ipv4Addr>(), address.parse::<Ipv6Addr>()) {
        (Ok(_), _) => 32,
        (_, Ok(_)) => 128,
        _ => return false,
    };
    bits.bytes().all(|c| c.is_ascii_digit()) && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

/// Go's durations, and words: `3 days`.
fn is_duration(text: &str) -> bool {
    if time::parse_duration(text).is_ok() {
        return true;
    }
    let pattern = "^((\\d+)\\s*(ns|nanos?|nanoseconds?|us|µs|micros?|microseconds?|ms|millis?|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)\\s*)+$";
    regexes::compile(pattern).is_ok_and(|regex| regex.is_match(text))
}
