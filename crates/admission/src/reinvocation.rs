//! The second round of mutation: who is asked again when something later changed the object (`reinvocationPolicy: IfNeeded`).

use serde_json::Value;
use std::collections::BTreeSet;

/// What mutating plug-ins remember between the two rounds of a request.
#[derive(Debug, Default)]
pub struct Reinvocation {
    /// Whether this is the second round.
    pub(crate) second: bool,
    wanted: bool,
    pub(crate) webhooks: Asked,
    pub(crate) policies: Asked,
}

impl Reinvocation {
    /// Whether a second round is wanted: something changed the object. Call it once, after the first round.
    pub fn begin_second(&mut self) -> bool {
        self.second = true;
        self.wanted
    }

    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }
}

/// Who of one plug-in was asked.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    last: Option<Value>,
    asked: BTreeSet<String>,
    again: BTreeSet<String>,
}

impl Asked {
    /// Before a round.
    pub(crate) fn begin(&mut self, second: bool, object: Option<&Value>) {
        if second && self.last.as_ref() != object {
            self.ask_again();
        }
    }

    /// After a round.
    pub(crate) fn end(&mut self, object: Option<&Value>) {
        self.last = object.cloned();
    }

    /// Somebody changed the object: all that were asked so far are to be asked again.
    pub(crate) fn ask_again(&mut self) {
        self.again.append(&mut self.asked);
    }

    /// Somebody who wants to be asked again was asked.
    pub(crate) fn remember(&mut self, id: String) {
        self.asked.insert(id);
    }

    pub(crate) fn is_asked_again(&self, id: &str) -> bool {
        self.again.contains(id)
    }
}
