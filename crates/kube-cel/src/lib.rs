//! CEL as Kubernetes uses it: compiler with static checks, evaluation within a cost limit, Kubernetes' libraries.
//!
//! [`Env::compile`] gives a [`Program`] or upstream's error text; [`Program::evaluate`] runs it over borrowed JSON.
//! Nothing recurses deeper than [`MAX_DEPTH`], and sizes and steps are bounded beside the cost limit.

pub mod authz;
pub mod formats;
pub mod regexes;
pub mod shape;
pub mod time;
pub mod types;
pub mod urls;
pub mod value;

mod ast;
mod checker;
mod convert;
mod cost;
mod declarations;
mod env;
mod equality;
mod estimate;
mod eval;
mod functions;
mod kube;
mod lexer;
mod lists;
mod literals;
mod macros;
mod operators;
mod parser;
mod reserved;
mod strings;

pub use convert::display;
pub use env::{CompileError, Env, Program};
pub use equality::equal;
pub use estimate::Range;
pub use eval::{Evaluated, PER_CALL_LIMIT, Variables};
pub use kube::Opaque;
pub use parser::{MAX_DEPTH, MAX_LENGTH};
pub use reserved::is_reserved;
pub use shape::Shape;
pub use types::Type;
pub use value::{Fault, Value};
