//! Command lines of upstream's form: `--name=value`, `--name value`, and `--name` alone for switches; dashes and underscores mean the same.

use crate::document::ConfigError;

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `--name`, `--name=true` or `--name=false`.
    Switch,
    /// `--name=value` or `--name value`.
    Text,
    /// The same; several values are joined by commas, in the file they are a list.
    List,
    /// `KEY=VALUE,…`; in the file an object.
    Map,
}

/// A flag of a table.
pub(crate) trait Flag {
    fn name(&self) -> &'static str;
    fn kind(&self) -> Kind;
}

/// The flags of a command line and their values, each flag once: lists are joined, else the last value counts.
pub(crate) fn split<F: Flag>(table: &'static [F], args: impl IntoIterator<Item = String>) -> Result<Vec<(&'static F, String)>, ConfigError> {
    let mut given: Vec<(&'static F, String)> = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some(body) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).filter(|body| !body.is_empty()) else {
            return Err(ConfigError::Argument(arg));
        };
        let (name, value) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value.to_owned())));
        let name = match name {
            "h" => "help".to_owned(),
            name => name.replace('_', "-"),
        };
        let Some(flag) = table.iter().find(|flag| flag.name() == name) else { return Err(ConfigError::UnknownFlag(name)) };
        let value = match (value, flag.kind()) {
            (Some(value), _) => value,
            (None, Kind::Switch) => "true".to_owned(),
            (None, _) => args.next().ok_or(ConfigError::NoArgument(name))?,
        };
        match given.iter_mut().find(|(known, _)| known.name() == flag.name()) {
            Some((_, list)) if matches!(flag.kind(), Kind::List | Kind::Map) => {
                list.push(',');
                list.push_str(&value);
            }
            Some((_, last)) => *last = value,
            None => given.push((flag, value)),
        }
    }
    Ok(given)
}

/// Whether a value of a flag without effect asks for nothing.
pub(crate) fn asks_for_nothing(kind: Kind, value: &str) -> bool {
    matches!(value, "" | "false") || kind == Kind::Text && matches!(value, "0" | "0s")
}

/// Checks the value of a switch that nobody reads.
pub(crate) fn check_switch(kind: Kind, name: &str, value: &str) -> Result<(), ConfigError> {
    if kind == Kind::Switch && value.parse::<bool>().is_err() {
        return Err(ConfigError::Value { name: name.to_owned(), value: value.to_owned(), reason: "write true or false".to_owned() });
    }
    Ok(())
}
