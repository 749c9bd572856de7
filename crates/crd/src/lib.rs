//! Custom resource definitions: what upstream's apiextensions-apiserver decides, as pure functions over JSON.
//!
//! [`definition`] judges definitions; [`schema::Schema`] is their schema. Objects go through [`prune`], [`default`],
//! [`values`], [`list_type`] and [`rules`]. [`names`] plans the status, [`conversion`] converts between versions.

pub mod columns;
pub mod conversion;
pub mod default;
pub mod definition;
pub mod field;
pub mod list_type;
pub mod names;
pub mod openapi;
pub mod path;
pub mod prune;
pub mod publish;
pub mod resource;
pub mod rules;
pub mod schema;
pub mod shape;
pub mod values;
pub mod warnings;

mod correlate;
mod formats;
mod structural;
