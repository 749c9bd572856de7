//! A reader of JSON and YAML that notices members which stand twice in one object (the last one counts, as everywhere, but strict clients
//! want to know) and that bounds what a document becomes in memory: its nesting, and what aliases make of it.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};
use std::cell::{Cell, RefCell};
use std::fmt;

/// Deepest nesting of a document. Readers of JSON commonly end at 128, and a list or a watch wraps what was stored here.
pub const DEEPEST: usize = 100;

/// Values and bytes that the aliases of a YAML document may add to its own.
const MOST_ALIASED: usize = 1 << 20;

/// Brackets that may be open at once in YAML. Its scanner looks at all of them for each token, so that this bounds its time. Text in quotes
/// counts too, which is why the bound is generous.
const MOST_OPEN: usize = 1000;

/// Most repetitions that are named (sigs.k8s.io/json has the same limit).
const MOST: usize = 100;

/// Most repetitions in YAML that are named: each costs a pass.
const MOST_LINES: usize = 16;

/// Reads a document; the second part names the members that stand twice, as `duplicate field "spec.replicas"`.
pub fn read(body: &[u8]) -> serde_json::Result<(Value, Vec<String>)> {
    twice(usize::MAX, |place| {
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let value = Reader(place).deserialize(&mut deserializer)?;
        deserializer.end().map(|()| value)
    })
}

/// The same for YAML, where one text names all repetitions with their lines. An alias is as large as what it stands for: a document may
/// repeat itself, but not without end.
pub fn read_yaml(body: &[u8]) -> Result<(Value, Vec<String>), serde_yaml_ng::Error> {
    let mut open = 0_usize;
    for byte in body {
        match byte {
            b'[' | b'{' if open == MOST_OPEN => return Err(Error::custom("exceeded max depth")),
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    let pass = |raised| {
        let place = Place { raised: Cell::new(raised), left: Cell::new(body.len() + MOST_ALIASED), ..Place::default() };
        let value = Reader(&place).deserialize(serde_yaml_ng::Deserializer::from_slice(body));
        (value, place)
    };
    let (value, place) = pass(None);
    let value = value?;
    if !place.any.get() {
        return Ok((value, Vec::new()));
    }
    // Only errors know their line: each pass ends at another repetition.
    let line = |index| {
        let (result, place) = pass(Some(index));
        let line = result.err()?.location()?.line();
        Some(format!("\n  line {line}: key {:?} already set in map", place.path.into_inner()))
    };
    let lines: String = (0..MOST_LINES).map_while(line).collect();
    Ok((value, vec![format!("yaml: unmarshal errors:{lines}")]))
}

/// Only when something is repeated it is worth knowing where.
fn twice<E>(budget: usize, read: impl Fn(&Place) -> Result<Value, E>) -> Result<(Value, Vec<String>), E> {
    let place = Place { left: Cell::new(budget), ..Place::default() };
    let value = read(&place)?;
    if !place.any.get() {
        return Ok((value, Vec::new()));
    }
    let place = Place { named: true, left: Cell::new(budget), ..Place::default() };
    let value = read(&place)?;
    Ok((value, place.found.into_inner()))
}

#[derive(Default)]
struct Place {
    /// Whether paths are kept.
    named: bool,
    /// Whether anything stands twice.
    any: Cell<bool>,
    /// Values and bytes that may still come.
    left: Cell<usize>,
    depth: Cell<usize>,
    path: RefCell<String>,
    found: RefCell<Vec<String>>,
    /// The repetition at which reading ends, counted down; the path is its key then.
    raised: Cell<Option<usize>>,
}

impl Place {
    /// Takes a value of so many bytes into account.
    fn spend<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(bytes + 1).ok_or_else(|| E::custom("document contains excessive aliasing"))?;
        self.left.set(left);
        Ok(())
    }

    /// Runs `read` inside of a list or an object.
    fn inside<T, E: Error>(&self, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.spend(0)?;
        if self.depth.get() == DEEPEST {
            return Err(E::custom("exceeded max depth"));
        }
        self.depth.set(self.depth.get() + 1);
        let result = read();
        self.depth.set(self.depth.get() - 1);
        result
    }

    /// Runs `read` one step further down.
    fn below<T>(&self, step: impl FnOnce() -> String, read: impl FnOnce() -> T) -> T {
        if !self.named {
            return read();
        }
        let step = step();
        let length = self.path.borrow().len();
        self.path.borrow_mut().push_str(&step);
        let result = read();
        self.path.borrow_mut().truncate(length);
        result
    }

    fn member(&self, name: &str) -> String {
        if self.path.borrow().is_empty() { name.to_string() } else { format!(".{name}") }
    }

    /// Whether reading ends at this key, which stands twice.
    fn raises(&self, name: &str) -> bool {
        match self.raised.get() {
            Some(0) => {
                *self.path.borrow_mut() = name.to_string();
                true
            }
            left => {
                self.raised.set(left.map(|left| left - 1));
                false
            }
        }
    }

    fn repeated(&self, name: &str) {
        self.any.set(true);
        if !self.named {
            return;
        }
        let step = self.member(name);
        let mut found = self.found.borrow_mut();
        let text = format!("duplicate field \"{}{step}\"", self.path.borrow());
        if found.len() < MOST && !found.contains(&text) {
            found.push(text);
        }
    }
}

/// A key of an object that has these members already.
struct Key<'a>(&'a Place, &'a Map<String, Value>);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string key")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<String, E> {
        if self.1.contains_key(name) && self.0.raises(name) {
            return Err(E::custom("already set in map"));
        }
        Ok(name.to_string())
    }
}

struct Reader<'a>(&'a Place);

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any valid JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.0.spend(0)?;
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.0.spend(0)?;
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.0.spend(0)?;
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.0.spend(0)?;
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.0.spend(0)?;
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.0.spend(value.len())?;
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.0.spend(value.len())?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.0.inside(|| {
            let mut list = Vec::new();
            loop {
                let index = list.len();
                match self.0.below(|| format!("[{index}]"), || items.next_element_seed(Reader(self.0)))? {
                    Some(item) => list.push(item),
                    None => return Ok(Value::Array(list)),
                }
            }
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        self.0.inside(|| {
            let mut map = Map::new();
            while let Some(name) = members.next_key_seed(Key(self.0, &map))? {
                self.0.spend(name.len())?;
                let value = self.0.below(|| self.0.member(&name), || members.next_value_seed(Reader(self.0)))?;
                match map.entry(name) {
                    Entry::Vacant(entry) => drop(entry.insert(value)),
                    Entry::Occupied(mut entry) => {
                        self.0.repeated(entry.key());
                        entry.insert(value);
                    }
                }
            }
            Ok(Value::Object(map))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        /// Whatever the text, the value is serde_json's.
        #[test]
        fn values_are_those_of_the_usual_reader(text in r#"[\[\]{}",:a-c0-9.e+\- \\tnu]{0,60}"#) {
            let usual: Option<Value> = serde_json::from_str(&text).ok();
            prop_assert_eq!(read(text.as_bytes()).ok().map(|(value, _)| value), usual);
        }

        /// A document without repetitions is read as it was written.
        #[test]
        fn documents_survive(numbers in proptest::collection::vec(any::<i64>(), 0..5), float in any::<f64>(), text in ".*") {
            let document = json!({"numbers": numbers, "float": float, "text": text, "deep": [[{"a": null, "b": [true]}]]});
            let (value, repeated) = read(document.to_string().as_bytes()).unwrap();
            prop_assert_eq!(value, serde_json::from_str::<Value>(&document.to_string()).unwrap());
            prop_assert!(repeated.is_empty());
        }
    }

    #[test]
    fn repetitions_are_named_and_the_last_counts() {
        let text = br#"{"a":1,"spec":{"x":[{"y":1,"y":2},{"y":null}],"a":1.5},"a":"z","a":-3}"#;
        let (value, found) = read(text).unwrap();
        assert_eq!(value, json!({"a": -3, "spec": {"x": [{"y": 2}, {"y": null}], "a": 1.5}}));
        assert_eq!(found, ["duplicate field \"spec.x[0].y\"", "duplicate field \"a\""]);
        assert!(read(b"{} {}").is_err() && read(b"{").is_err());
        assert!(read(b"{\"a\":true}").unwrap().1.is_empty());
    }

    #[test]
    fn repetitions_in_yaml_are_named_with_their_lines() {
        let (value, found) = read_yaml(b"\nspec:\n  foo: 1\n  foo: 2\n  list:\n  - a: 1\n    \"a\": 2\n    a: 3\n").unwrap();
        assert_eq!(value, json!({"spec": {"foo": 2, "list": [{"a": 3}]}}));
        let line = |line: usize, key: &str| format!("\n  line {line}: key {key:?} already set in map");
        assert_eq!(found, [format!("yaml: unmarshal errors:{}{}{}", line(4, "foo"), line(7, "a"), line(8, "a"))]);
        let many = "a: 1\n".repeat(100);
        assert_eq!(read_yaml(many.as_bytes()).unwrap().1.concat().matches("line ").count(), MOST_LINES);
    }

    #[test]
    fn nesting_is_bounded() {
        let lists = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for depth in [DEEPEST, DEEPEST + 1, 1_000_000] {
            let (document, fits) = (lists(depth), depth <= DEEPEST);
            assert_eq!((read(document.as_bytes()).is_ok(), read_yaml(document.as_bytes()).is_ok()), (fits, fits), "{depth}");
        }
        for nested in ["- ", "? "] {
            assert!(read_yaml(nested.repeat(10_000).as_bytes()).is_err(), "{nested}");
        }
    }

    #[test]
    fn aliases_are_as_large_as_what_they_stand_for() {
        let (value, _) = read_yaml(b"base: &b {x: [1, two]}\ncopy: *b\n1: yes\n").unwrap();
        assert_eq!(value, json!({"base": {"x": [1, "two"]}, "copy": {"x": [1, "two"]}, "1": "yes"}));
        let refused = |document: &str| read_yaml(document.as_bytes()).unwrap_err().to_string();
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..9 {
            let below = vec![format!("*a{}", level - 1); 10].join(",");
            bomb += &format!("a{level}: &a{level} [{below}]\n");
        }
        assert_eq!(refused(&bomb), "repetition limit exceeded");
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 16), vec!["*a"; 100].join(","));
        assert!(refused(&long).contains("document contains excessive aliasing"));
        let many = format!("a: &a [{}]\nb: [{}]\n", vec!["x"; 1 << 14].join(","), vec!["*a"; 100].join(","));
        assert!(refused(&many).contains("document contains excessive aliasing"));
    }
}
