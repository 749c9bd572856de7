//! The schema tree: what JSON may stand where, how lists and objects merge, and what identifies an item.
//!
//! One tree holds the types of many kinds. A type is an entry of a table, so that types may refer to each other in circles.

use serde_json::Value;
use std::collections::HashMap;

/// The types of one or many kinds.
#[derive(Debug)]
pub struct Schema {
    nodes: Vec<Node>,
    names: HashMap<Box<str>, TypeRef>,
}

/// A type of a [`Schema`], and how its place changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeRef {
    index: u32,
    /// Whether objects here are one leaf, whatever their type says.
    atomic: Option<bool>,
}

impl TypeRef {
    /// The same type where objects are replaced as a whole (`true`) or member by member.
    #[must_use]
    pub fn with_atomic(self, atomic: bool) -> TypeRef {
        TypeRef { atomic: Some(atomic), ..self }
    }
}

/// What may stand somewhere. Most types allow one of the three; types without a schema allow all.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The full name (`io.k8s.api.core.v1.Pod`); types that stand in others have none.
    pub name: Box<str>,
    /// A scalar of this kind.
    pub scalar: Option<Scalar>,
    /// A list.
    pub list: Option<List>,
    /// A struct or map.
    pub object: Option<Object>,
}

/// Which scalars are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Whole numbers and others.
    Numeric,
    /// Texts.
    String,
    /// `true` and `false`.
    Boolean,
    /// Any scalar: quantities, times, `IntOrString`.
    Untyped,
}

/// A list and how it merges.
#[derive(Clone, Debug)]
pub struct List {
    /// The type of the items.
    pub items: TypeRef,
    /// How apply merges it.
    pub merge: ListMerge,
}

/// How apply merges a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListMerge {
    /// It is replaced as a whole.
    Atomic,
    /// Its items are scalars, each of which has owners.
    Set,
    /// Its items are objects that these members identify.
    Map(Box<[Box<str>]>),
}

/// A struct (fields), a map (values), or both.
#[derive(Clone, Debug, Default)]
pub struct Object {
    pub(crate) fields: Box<[Field]>,
    /// The type of members that are no fields; without it they are unknown.
    pub values: Option<TypeRef>,
    /// Whether it is replaced as a whole.
    pub atomic: bool,
}

/// A field of a struct.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name in JSON.
    pub name: Box<str>,
    /// The type.
    pub value: TypeRef,
    /// The value of a key that an item leaves out.
    pub default: Option<Value>,
    /// What the field is when its struct is there and the field is not: Go holds structs and required fields by value.
    pub zero: Option<Value>,
    /// How strategic merge patches merge it.
    pub patch: Patch,
}

/// How strategic merge patches merge a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// `merge`, `replace`, or nothing.
    pub strategy: Option<Box<str>>,
    /// The member that identifies an item of the list.
    pub key: Option<Box<str>>,
}

impl Field {
    /// A field without default, that Go leaves out when it is empty.
    pub fn new(name: &str, value: TypeRef) -> Field {
        Field { name: name.into(), value, default: None, zero: None, patch: Patch::default() }
    }
}

impl Object {
    /// A struct of these fields.
    pub fn of(mut fields: Vec<Field>) -> Object {
        fields.sort_by(|left, right| left.name.cmp(&right.name));
        Object { fields: fields.into(), values: None, atomic: false }
    }

    /// A map of these values.
    pub fn map(values: TypeRef) -> Object {
        Object { fields: Box::default(), values: Some(values), atomic: false }
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|field| (*field.name).cmp(name)).ok().map(|at| &self.fields[at])
    }

    /// All fields, by name.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The type of the member of this name.
    pub fn member(&self, name: &str) -> Option<TypeRef> {
        self.field(name).map(|field| field.value).or(self.values)
    }
}

impl Node {
    /// A type of scalars.
    pub fn scalar(scalar: Scalar) -> Node {
        Node { scalar: Some(scalar), ..Node::default() }
    }

    /// A type of lists.
    pub fn list(items: TypeRef, merge: ListMerge) -> Node {
        Node { list: Some(List { items, merge }), ..Node::default() }
    }

    /// A type of structs or maps.
    pub fn object(object: Object) -> Node {
        Node { object: Some(object), ..Node::default() }
    }

    /// The last part of the name, as Go prints it.
    pub fn short(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or_default()
    }
}

impl Schema {
    /// Anything, as one leaf.
    pub const UNTYPED: TypeRef = TypeRef { index: 0, atomic: None };
    /// Anything: objects merge member by member, lists are leaves.
    pub const DEDUCED: TypeRef = TypeRef { index: 1, atomic: None };

    /// The schema of kinds without one: every type is deduced from the value.
    pub fn deduced() -> Schema {
        Builder::default().schema
    }

    /// The type of this full name.
    pub fn find(&self, name: &str) -> Option<Type<'_>> {
        self.names.get(name).map(|at| Type { schema: self, at: *at })
    }

    /// The type that a reference names.
    pub fn type_at(&self, at: TypeRef) -> Type<'_> {
        Type { schema: self, at }
    }

    /// The names of all types.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(|name| &**name)
    }

    pub(crate) fn node(&self, at: TypeRef) -> &Node {
        self.nodes.get(at.index as usize).unwrap_or(&self.nodes[0])
    }

    pub(crate) fn atom(&self, at: Option<TypeRef>) -> Atom<'_> {
        let Some(at) = at else { return Atom::default() };
        let node = self.node(at);
        let object = node.object.as_ref().map(|object| (object, at.atomic.unwrap_or(object.atomic)));
        Atom { scalar: node.scalar, list: node.list.as_ref(), object }
    }
}

/// A type together with its schema.
#[derive(Clone, Copy, Debug)]
pub struct Type<'a> {
    /// Where the type is.
    pub schema: &'a Schema,
    /// Which it is.
    pub at: TypeRef,
}

impl<'a> Type<'a> {
    /// What may stand there.
    pub fn node(self) -> &'a Node {
        self.schema.node(self.at)
    }
}

/// What a type allows, or what is left of that for a value.
#[derive(Clone, Copy, Default)]
pub(crate) struct Atom<'a> {
    scalar: Option<Scalar>,
    list: Option<&'a List>,
    object: Option<(&'a Object, bool)>,
}

/// How a value is treated.
#[derive(Clone, Copy)]
pub(crate) enum Shape<'a> {
    /// A struct or map; the flag says whether it is one leaf.
    Object(&'a Object, bool),
    Scalar(Scalar),
    List(&'a List),
    /// The type allows nothing.
    Nothing,
}

impl<'a> Atom<'a> {
    /// What is left for a value of this kind: all when it is null, absent, or does not fit.
    pub(crate) fn deduce(self, value: Option<&Value>) -> Atom<'a> {
        match value {
            Some(Value::Number(_) | Value::String(_) | Value::Bool(_)) if self.scalar.is_some() => Atom { scalar: self.scalar, ..Atom::default() },
            Some(Value::Array(_)) if self.list.is_some() => Atom { list: self.list, ..Atom::default() },
            Some(Value::Object(_)) if self.object.is_some() => Atom { object: self.object, ..Atom::default() },
            _ => self,
        }
    }

    /// Whether both, of one type, allow the same.
    pub(crate) fn same(self, other: Atom) -> bool {
        let allowed = |atom: Atom| (atom.scalar.is_some(), atom.list.is_some(), atom.object.is_some());
        allowed(self) == allowed(other)
    }

    pub(crate) fn shape(self) -> Shape<'a> {
        match self {
            Atom { object: Some((object, atomic)), .. } => Shape::Object(object, atomic),
            Atom { scalar: Some(scalar), .. } => Shape::Scalar(scalar),
            Atom { list: Some(list), .. } => Shape::List(list),
            _ => Shape::Nothing,
        }
    }
}

/// Why a schema cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A type is referred to and not defined.
    #[error("cannot build the schema: type {0} is not defined; define it before the schema is finished")]
    Undefined(String),
    /// A line of a table of facts, or a part of an OpenAPI schema, makes no sense.
    #[error("cannot build the schema: {at}: {reason}")]
    Invalid {
        /// The line, or the path.
        at: String,
        /// What is wrong.
        reason: String,
    },
}

/// Builds a [`Schema`] type by type.
#[derive(Debug)]
pub struct Builder {
    schema: Schema,
    undefined: HashMap<u32, Box<str>>,
}

impl Default for Builder {
    fn default() -> Builder {
        let untyped = Node {
            name: "__untyped_atomic_".into(),
            scalar: Some(Scalar::Untyped),
            list: Some(List { items: Schema::UNTYPED, merge: ListMerge::Atomic }),
            object: Some(Object { atomic: true, ..Object::map(Schema::UNTYPED) }),
        };
        let deduced = Node {
            name: "__untyped_deduced_".into(),
            object: Some(Object::map(Schema::DEDUCED)),
            list: Some(List { items: Schema::UNTYPED, merge: ListMerge::Atomic }),
            scalar: Some(Scalar::Untyped),
        };
        let mut nodes = vec![untyped, deduced];
        nodes.extend([Scalar::Numeric, Scalar::String, Scalar::Boolean, Scalar::Untyped].map(Node::scalar));
        Builder { schema: Schema { nodes, names: HashMap::new() }, undefined: HashMap::new() }
    }
}

impl Builder {
    /// The type of scalars of this kind.
    pub fn scalar(&self, scalar: Scalar) -> TypeRef {
        let index = match scalar {
            Scalar::Numeric => 2,
            Scalar::String => 3,
            Scalar::Boolean => 4,
            Scalar::Untyped => 5,
        };
        TypeRef { index, atomic: None }
    }

    /// Adds a type without a name.
    pub fn add(&mut self, node: Node) -> TypeRef {
        let index = u32::try_from(self.schema.nodes.len()).unwrap_or(0);
        self.schema.nodes.push(node);
        TypeRef { index, atomic: None }
    }

    /// The type of this name, which may be defined later.
    pub fn declare(&mut self, name: &str) -> TypeRef {
        if let Some(found) = self.schema.names.get(name) {
            return *found;
        }
        let at = self.add(Node::default());
        self.schema.names.insert(name.into(), at);
        self.undefined.insert(at.index, name.into());
        at
    }

    /// Says what the type of this name is.
    pub fn define(&mut self, name: &str, node: Node) -> TypeRef {
        let at = self.declare(name);
        self.undefined.remove(&at.index);
        self.schema.nodes[at.index as usize] = Node { name: name.into(), ..node };
        at
    }

    /// Takes a type over from another schema, with all that it refers to.
    pub fn import(&mut self, from: Type<'_>) -> TypeRef {
        let mut taken = HashMap::new();
        let (mut waiting, first) = (vec![from.at.index], from.at);
        while let Some(index) = waiting.pop() {
            if index < 6 || taken.contains_key(&index) {
                continue;
            }
            let node = from.schema.node(TypeRef { index, atomic: None });
            taken.insert(index, self.add(Node::default()).index);
            waiting.extend(node.list.iter().map(|list| list.items.index));
            if let Some(object) = &node.object {
                waiting.extend(object.fields.iter().map(|field| field.value).chain(object.values).map(|at| at.index));
            }
        }
        let moved = |at: TypeRef| TypeRef { index: *taken.get(&at.index).unwrap_or(&at.index), ..at };
        for (old, new) in &taken {
            let mut node = from.schema.nodes[*old as usize].clone();
            if let Some(list) = &mut node.list {
                list.items = moved(list.items);
            }
            if let Some(object) = &mut node.object {
                object.values = object.values.map(moved);
                object.fields.iter_mut().for_each(|field| field.value = moved(field.value));
            }
            self.schema.nodes[*new as usize] = node;
        }
        moved(first)
    }

    /// The schema; every declared type must be defined.
    pub fn finish(self) -> Result<Schema, SchemaError> {
        match self.undefined.into_values().min() {
            Some(name) => Err(SchemaError::Undefined(name.into())),
            None => Ok(self.schema),
        }
    }
}
