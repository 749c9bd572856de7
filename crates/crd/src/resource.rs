//! One version of a custom resource: what is known of it without its schema, which is large, and its schema ready to serve: what happens to
//! objects on their way in and out.

use std::sync::Arc;

use serde_json::Value;

use crate::columns::Column;
use crate::field::Errors;
use crate::list_type;
use crate::openapi::apply_defaults;
use crate::path;
use crate::prune;
use crate::rules::{Judged, Rules};
use crate::schema::Schema;
use crate::values;

/// Where `scale` finds its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub label_selector: Option<String>,
}

/// A version of a definition, without what [`Version::compile`] makes of its schema.
#[derive(Clone, Debug)]
pub struct Version {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    pub deprecated: bool,
    pub deprecation_warning: Option<String>,
    /// `openAPIV3Schema` as JSON; `null` when there is none.
    pub source: Arc<[u8]>,
    /// Whether `status` is a subresource.
    pub status: bool,
    pub scale: Option<Scale>,
    /// The declared columns; none means a column of ages.
    pub columns: Vec<Column>,
    /// JSONPaths of fields that field selectors may name.
    pub selectable: Vec<String>,
    preserves_all: bool,
}

/// The schema and the rules of a version. It takes many times the memory of the version's source.
pub struct Compiled {
    pub schema: Schema,
    rules: Option<Rules>,
    preserves_all: bool,
}

impl Version {
    /// All versions of a definition that was accepted. Versions without a schema accept everything.
    pub fn all(definition: &Value) -> Vec<Version> {
        let preserves_all = definition["spec"]["preserveUnknownFields"] == true;
        let versions = definition["spec"]["versions"].as_array();
        versions.into_iter().flatten().map(|version| Version::new(version, preserves_all)).collect()
    }

    fn new(version: &Value, preserves_all: bool) -> Version {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let scale = &version["subresources"]["scale"];
        let label_selector = text(&scale["labelSelectorPath"]);
        Version {
            name: text(&version["name"]),
            served: version["served"] == true,
            storage: version["storage"] == true,
            deprecated: version["deprecated"] == true,
            deprecation_warning: version["deprecationWarning"].as_str().map(str::to_owned),
            source: version["schema"]["openAPIV3Schema"].to_string().into_bytes().into(),
            status: version["subresources"]["status"].is_object(),
            scale: scale.is_object().then(|| Scale {
                spec_replicas: text(&scale["specReplicasPath"]),
                status_replicas: text(&scale["statusReplicasPath"]),
                label_selector: (!label_selector.is_empty()).then_some(label_selector),
            }),
            columns: version["additionalPrinterColumns"].as_array().into_iter().flatten().map(Column::parse).collect(),
            selectable: version["selectableFields"].as_array().into_iter().flatten().map(|field| text(&field["jsonPath"])).collect(),
            preserves_all,
        }
    }

    /// `openAPIV3Schema`.
    pub fn openapi(&self) -> Value {
        serde_json::from_slice(&self.source).unwrap_or_default()
    }

    /// Compiles the schema and its rules.
    pub fn compile(&self) -> Compiled {
        let schema = Schema::parse(&self.openapi());
        let preserves_all = self.preserves_all || schema.is_err();
        let schema = schema.unwrap_or_default();
        Compiled { rules: Rules::new(&schema, true), schema, preserves_all }
    }

    /// The text of a selectable field, as field selectors compare it.
    pub fn selected(object: &Value, json_path: &str) -> String {
        match path::get(object, json_path) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(other) => other.to_string(),
        }
    }
}

impl Compiled {
    /// Prunes an object that came in, and sets its defaults. Gives the paths of fields that the schema does not know.
    pub fn decode(&self, object: &mut Value) -> Vec<String> {
        let unknown = self.prune(object);
        apply_defaults(object, &self.schema);
        unknown
    }

    /// Prunes an object that has been converted into this version. Gives the paths of fields that the schema does not know.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        if self.preserves_all { Vec::new() } else { prune::prune(object, &self.schema, true) }
    }

    /// The errors of a new object, without those of `metadata`.
    pub fn validate(&self, object: &Value) -> Errors {
        let mut errors = values::validate("", object, &self.schema);
        errors.extend(list_type::validate(object, &self.schema));
        self.add_rules(errors, object, None).errors
    }

    /// The errors and warnings of a changed object.
    pub fn validate_update(&self, object: &Value, old: &Value) -> Judged {
        let mut errors = values::validate_update(object, old, &self.schema);
        // What was a set or had its keys before must stay so.
        if list_type::validate(old, &self.schema).is_empty() {
            errors.extend(list_type::validate(object, &self.schema));
        }
        self.add_rules(errors, object, Some(old))
    }

    /// Rules see only values that have the types that they were compiled for.
    fn add_rules(&self, errors: Errors, object: &Value, old: Option<&Value>) -> Judged {
        let blocked = errors.iter().any(|error| {
            use crate::field::ErrorKind;
            matches!(error.kind, ErrorKind::NotSupported | ErrorKind::Required | ErrorKind::TooLong | ErrorKind::TooMany | ErrorKind::TypeInvalid)
        });
        let mut judged = Judged { errors, warnings: Vec::new() };
        match &self.rules {
            Some(_) if blocked => judged.errors.push(crate::field::invalid(
                "",
                Value::Null,
                "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
            )),
            Some(rules) => {
                let found = rules.validate("", object, old);
                judged.errors.extend(found.errors);
                judged.warnings.extend(found.warnings);
            }
            None => {}
        }
        judged
    }
}
