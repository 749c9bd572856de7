//! Macros that declare a document once: its members, their wire names, and how they are read and written.

/// Declares a JSON document.
///
/// Reading ignores the case of member names (Go programs and Windows scripts disagree about it), takes `null` as absent, and keeps unknown
/// members in `extra`. Writing omits members that hold their default, as HNS does, except those marked `always`.
macro_rules! document {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$field_meta:meta])* $field:ident : $ty:ty = $wire:literal $(| $alias:literal)* $(, $always:ident)? );* $(;)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $ty, )*
            /// Members this crate does not know, kept as they were read.
            pub extra: serde_json::Map<String, serde_json::Value>,
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap;
                let mut map = serializer.serialize_map(None)?;
                $( if document!(@always $($always)?) || self.$field != <$ty>::default() {
                    map.serialize_entry($wire, &self.$field)?;
                } )*
                for (key, value) in &self.extra {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("a ", stringify!($name), " object"))
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut doc = $name::default();
                        while let Some(key) = map.next_key::<String>()? {
                            $( if key.eq_ignore_ascii_case($wire) $( || key.eq_ignore_ascii_case($alias) )* {
                                doc.$field = map.next_value::<Option<$ty>>()?.unwrap_or_default();
                                continue;
                            } )*
                            let value = map.next_value::<serde_json::Value>()?;
                            doc.extra.insert(key, value);
                        }
                        Ok(doc)
                    }
                }
                deserializer.deserialize_map(Visitor)
            }
        }
    };
    (@always) => { false };
    (@always always) => { true };
}

/// Declares an enum that travels as a string and may be read as a string of any case or as its number.
/// A name this crate does not know is kept in `Other`.
macro_rules! named {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { default $default:ident; $( $(#[$variant_meta:meta])* $variant:ident = $wire:literal $(/ $number:literal)? ),* $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )*
            /// A value this crate does not know, as it was read.
            Other(String),
        }

        impl $name {
            /// The name on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $wire, )*
                    Self::Other(name) => name,
                }
            }

            /// Reads a name of any case, or the number that stands for it.
            pub fn parse(text: &str) -> Self {
                $( if text.eq_ignore_ascii_case($wire) $( || text == stringify!($number) )? {
                    return Self::$variant;
                } )*
                Self::Other(text.to_owned())
            }
        }

        impl Default for $name {
            fn default() -> Self { Self::$default }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let token = crate::document::Token::deserialize(deserializer)?;
                Ok(Self::parse(token.as_str()))
            }
        }
    };
}

/// Declares a set of bits that travels as a number and may be read as a number, or as names or numbers joined by commas.
macro_rules! bits {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $( $(#[$bit_meta:meta])* $bit:ident = $value:literal $wire:literal ),* $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            $( $(#[$bit_meta])* pub const $bit: Self = Self($value); )*

            /// Whether every bit of `other` is set.
            pub fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self { Self(self.0 | other.0) }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u32(self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let token = crate::document::Token::deserialize(deserializer)?;
                let mut set = Self::default();
                for word in token.as_str().split([',', '|']).map(str::trim).filter(|word| !word.is_empty()) {
                    let bit = match word.parse::<u32>() {
                        Ok(number) => Self(number),
                        $( Err(_) if word.eq_ignore_ascii_case($wire) => Self::$bit, )*
                        Err(_) if word.eq_ignore_ascii_case("None") => Self(0),
                        Err(_) => return Err(serde::de::Error::custom(format!("{word:?} is not a bit of {}", stringify!($name)))),
                    };
                    set = set | bit;
                }
                Ok(set)
            }
        }
    };
}
