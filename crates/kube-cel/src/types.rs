//! Types of expressions, and how they unify.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::shape::Object;

#[derive(Clone, Debug)]
pub enum Type {
    Dyn,
    /// The type of an expression that has an error; it goes with every other.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    Type(Option<Arc<Type>>),
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    Optional(Arc<Type>),
    /// An object with known fields.
    Object(Arc<Object>),
    /// A type known by its name alone: `net.IP`, `kubernetes.Quantity`.
    Named(Arc<str>),
    Param(u32),
}

impl Type {
    pub fn list(element: Type) -> Type {
        Type::List(Arc::new(element))
    }

    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new(key), Arc::new(value))
    }

    pub fn optional(value: Type) -> Type {
        Type::Optional(Arc::new(value))
    }

    pub fn named(name: &str) -> Type {
        Type::Named(name.into())
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    pub(crate) fn unwrap_optional(&self) -> (Type, bool) {
        match self {
            Type::Optional(inner) => ((**inner).clone(), true),
            other => (other.clone(), false),
        }
    }

    fn same_name(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Object(a), Type::Object(b)) => Arc::ptr_eq(a, b) || a.name == b.name,
            (Type::Object(object), Type::Named(name)) | (Type::Named(name), Type::Object(object)) => object.name == **name,
            (Type::Named(a), Type::Named(b)) => a == b,
            (Type::Param(a), Type::Param(b)) => a == b,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }

    fn params(&self) -> Vec<&Arc<Type>> {
        match self {
            Type::List(inner) | Type::Optional(inner) | Type::Type(Some(inner)) => vec![inner],
            Type::Map(key, value) => vec![key, value],
            _ => Vec::new(),
        }
    }

    /// The same type, parameters included.
    pub fn same(&self, other: &Type) -> bool {
        let (mine, theirs) = (self.params(), other.params());
        self.same_name(other) && mine.len() == theirs.len() && mine.iter().zip(theirs).all(|(mine, theirs)| mine.same(theirs))
    }

    fn equal_or_less_specific(&self, other: &Type) -> bool {
        if matches!(self, Type::Dyn | Type::Param(_)) {
            return true;
        }
        if matches!(other, Type::Dyn | Type::Param(_)) || !self.same_name(other) {
            return false;
        }
        matches!(self, Type::Type(_)) || self.params().iter().zip(other.params()).all(|(mine, other)| mine.equal_or_less_specific(other))
    }

    pub(crate) fn most_general(a: &Type, b: &Type) -> Type {
        if a.equal_or_less_specific(b) { a.clone() } else { b.clone() }
    }

    /// Replaces the parameters of a declaration by other types.
    pub(crate) fn with_params(&self, by: &dyn Fn(u32) -> Type) -> Type {
        let inner = |inner: &Arc<Type>| Arc::new(inner.with_params(by));
        match self {
            Type::Param(id) => by(*id),
            Type::List(element) => Type::List(inner(element)),
            Type::Optional(value) => Type::Optional(inner(value)),
            Type::Map(key, value) => Type::Map(inner(key), inner(value)),
            Type::Type(Some(of)) => Type::Type(Some(inner(of))),
            other => other.clone(),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => f.write_str("dyn"),
            Type::Error => f.write_str("!error!"),
            Type::Null => f.write_str("null"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::String => f.write_str("string"),
            Type::Bytes => f.write_str("bytes"),
            Type::Duration => f.write_str("duration"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Type(None) => f.write_str("type"),
            Type::Type(Some(of)) => write!(f, "type({of})"),
            Type::List(element) => write!(f, "list({element})"),
            Type::Map(key, value) => write!(f, "map({key}, {value})"),
            Type::Optional(value) => write!(f, "optional_type({value})"),
            Type::Object(object) => f.write_str(&object.name),
            Type::Named(name) => f.write_str(name),
            Type::Param(id) => write!(f, "_var{id}"),
        }
    }
}

/// What type parameters were found to stand for.
#[derive(Clone, Default)]
pub(crate) struct Mapping {
    found: HashMap<u32, Type>,
}

impl Mapping {
    /// Whether a value of one type may stand where the other is wanted; learns what parameters stand for.
    pub(crate) fn assignable(&mut self, a: &Type, b: &Type) -> bool {
        self.assignable_all(std::slice::from_ref(a), std::slice::from_ref(b))
    }

    pub(crate) fn assignable_all(&mut self, a: &[Type], b: &[Type]) -> bool {
        let mut trial = self.clone();
        let fits = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| trial.try_assign(a, b));
        if fits {
            *self = trial;
        }
        fits
    }

    fn try_assign(&mut self, a: &Type, b: &Type) -> bool {
        if let Type::Param(id) = b {
            let (valid, known) = self.valid_substitution(a, *id);
            if valid {
                return true;
            }
            if known {
                return false;
            }
        }
        if let Type::Param(id) = a {
            return self.valid_substitution(b, *id).0;
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        let nullable = |of: &Type| matches!(of, Type::Null | Type::Object(_) | Type::Named(_) | Type::Optional(_) | Type::Duration | Type::Timestamp);
        if matches!(a, Type::Null) {
            return nullable(b);
        }
        if matches!(b, Type::Null) {
            return nullable(a);
        }
        if matches!((a, b), (Type::Type(_), Type::Type(_))) {
            return true;
        }
        let (mine, theirs) = (a.params(), b.params());
        a.same_name(b) && mine.len() == theirs.len() && mine.iter().zip(theirs).all(|(mine, theirs)| self.try_assign(mine, theirs))
    }

    /// Whether the type can stand for the parameter, and whether the parameter already stands for something.
    fn valid_substitution(&mut self, of: &Type, param: u32) -> (bool, bool) {
        if matches!(of, Type::Param(id) if *id == param) {
            return (true, true);
        }
        if let Some(found) = self.found.get(&param).cloned() {
            if of.same(&found) {
                return (true, true);
            }
            if self.try_assign(of, &found) {
                let general = Type::most_general(of, &found);
                if self.absent(param, &general) {
                    self.found.insert(param, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.absent(param, of) {
            self.found.insert(param, of.clone());
            return (true, false);
        }
        (false, false)
    }

    /// The parameter does not occur within the type.
    fn absent(&self, param: u32, within: &Type) -> bool {
        match within {
            Type::Param(id) if *id == param => false,
            Type::Param(id) => self.found.get(id).is_none_or(|found| self.absent(param, found)),
            other => other.params().iter().all(|inner| self.absent(param, inner)),
        }
    }

    /// The type with everything put in that is known; `end` makes unknown parameters dynamic.
    pub(crate) fn substitute(&self, of: &Type, end: bool) -> Type {
        match of {
            Type::Param(id) => match self.found.get(id) {
                Some(found) => self.substitute(found, end),
                None if end => Type::Dyn,
                None => of.clone(),
            },
            other => other.with_params(&|id| self.substitute(&Type::Param(id), end)),
        }
    }
}
