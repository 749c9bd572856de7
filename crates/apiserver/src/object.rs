//! Reading and writing the members every object has, on plain JSON values.

use serde_json::{Map, Value};

/// A string at a dotted path below `object` ("" when absent).
pub fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    lookup(object, path).and_then(Value::as_str).unwrap_or_default()
}

pub fn integer(object: &Value, path: &[&str]) -> Option<i64> {
    lookup(object, path).and_then(Value::as_i64)
}

/// A list at a path (empty when absent).
pub fn list<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    lookup(object, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The value at a path; `null` counts as absent.
pub fn lookup<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let found = path.iter().try_fold(object, |value, member| value.get(member))?;
    if found.is_null() { None } else { Some(found) }
}

/// The map at `member`, made when absent or of another type.
pub fn map_mut<'a>(object: &'a mut Value, member: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let slot = object.as_object_mut().expect("was made an object above").entry(member).or_insert(Value::Null);
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("was made an object above")
}

/// The array at `member` of a map, made when absent or of another type.
pub fn array_mut<'a>(map: &'a mut Map<String, Value>, member: &str) -> &'a mut Vec<Value> {
    let slot = map.entry(member).or_insert(Value::Null);
    if !slot.is_array() {
        *slot = Value::Array(Vec::new());
    }
    slot.as_array_mut().expect("was made an array above")
}

/// The object's metadata, made when absent.
pub fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    map_mut(object, "metadata")
}

/// metadata.name
pub fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

/// `name` of a reference
pub fn name_of(reference: &Value) -> &str {
    text(reference, &["name"])
}

/// metadata.namespace
pub fn namespace(object: &Value) -> &str {
    text(object, &["metadata", "namespace"])
}

/// metadata.uid
pub fn uid(object: &Value) -> &str {
    text(object, &["metadata", "uid"])
}

/// metadata.resourceVersion
pub fn resource_version(object: &Value) -> &str {
    text(object, &["metadata", "resourceVersion"])
}

/// Whether a deletion has begun.
pub fn is_deleting(object: &Value) -> bool {
    lookup(object, &["metadata", "deletionTimestamp"]).is_some()
}

/// metadata.finalizers
pub fn finalizers(object: &Value) -> Vec<&str> {
    list(object, &["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect()
}

/// Moves `member` of `from` into `to` (removes it there when `from` has none).
pub fn copy_member(from: &Value, to: &mut Value, member: &str) {
    let Some(target) = to.as_object_mut() else { return };
    match from.get(member) {
        Some(value) => {
            target.insert(member.to_string(), value.clone());
        }
        None => {
            target.shift_remove(member);
        }
    }
}

/// Sets a member of an object.
pub fn set(object: &mut Value, member: &str, value: Value) {
    if let Some(map) = object.as_object_mut() {
        map.insert(member.to_string(), value);
    }
}

/// Removes members that are `null`: Go's decoder treats them as absent.
pub fn drop_nulls(map: &mut Map<String, Value>) {
    map.retain(|_, value| !value.is_null());
}

/// Marks the beginning of a deletion (or shortens one).
pub fn begin_deletion(object: &mut Value, grace: i64) {
    let fresh = !is_deleting(object);
    let generation = integer(object, &["metadata", "generation"]);
    let metadata = map_mut(object, "metadata");
    let when = metadata.get("deletionTimestamp").and_then(Value::as_str).map(str::to_string);
    let running = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64);
    if fresh || running != Some(grace) {
        let when = if fresh { seconds_from_now(grace) } else { shortened(when.as_deref(), running, grace) };
        metadata.insert("deletionTimestamp".into(), when.into());
        metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
    }
    if let Some(generation) = generation.filter(|generation| fresh && *generation > 0) {
        metadata.insert("generation".into(), (generation + 1).into());
    }
}

/// The end of a deletion that has been hastened: counted from when it began.
fn shortened(when: Option<&str>, running: Option<i64>, grace: i64) -> String {
    let end = when.and_then(|text| text.parse::<jiff::Timestamp>().ok()).map(jiff::Timestamp::as_second);
    let now = jiff::Timestamp::now().as_second();
    let began = end.map_or(now, |end| end - running.unwrap_or_default());
    seconds_from_now(began + grace - now)
}

/// The present as Kubernetes writes times: RFC 3339 in UTC, whole seconds.
pub fn now() -> String {
    seconds_from_now(0)
}

/// A time `seconds` from now as Kubernetes writes it.
pub fn seconds_from_now(seconds: i64) -> String {
    let at = jiff::Timestamp::now().as_second().saturating_add(seconds);
    jiff::Timestamp::from_second(at).map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default()
}

/// A random suffix as upstream's generateName makes it (k8s.io/apimachinery/pkg/util/rand: no vowels, no look-alikes).
pub fn random_suffix(length: usize) -> String {
    use rand::Rng;
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    (0..length).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_have_whole_seconds() {
        let now = now();
        assert_eq!(now.len(), "2026-11-21T04:05:06Z".len());
        assert!(now.ends_with('Z'));
    }

    #[test]
    fn null_counts_as_absent() {
        assert!(lookup(&json!({"metadata": {"deletionTimestamp": null}}), &["metadata", "deletionTimestamp"]).is_none());
    }

    #[test]
    fn suffixes_are_of_the_length_asked_for() {
        let suffix = random_suffix(5);
        assert_eq!(suffix.len(), 5);
        assert!(!suffix.contains(['a', 'e', 'i', 'o', 'u', '0', '1', '3']));
    }
}
