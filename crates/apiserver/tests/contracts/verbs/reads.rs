//! create, get, list, Table and PartialObjectMetadata.

use super::Contract;
use crate::objects;
use crate::served::{ask, send};
use kube::ResourceExt as _;
use kube::api::{DynamicObject, ListParams, PartialObjectMeta, PostParams};
use serde_json::{Value, json};

impl Contract {
    pub(super) async fn unknown_objects_are_not_found(&self) {
        let missing = format!("{} \"{}\" not found", self.resource.qualified(), self.name(0));
        let merge = [("content-type", "application/merge-patch+json")];
        let get = send(&self.client, "GET", &self.path(0), &Value::Null).await;
        let patch = ask(&self.client, "PATCH", &self.path(0), &merge, "{}").await;
        let delete = send(&self.client, "DELETE", &self.path(0), &Value::Null).await;
        let mut answers = vec![get, patch, delete];
        for (part, verbs) in &self.resource.parts {
            if verbs.iter().any(|verb| verb == "get") && matches!(part.as_str(), "status" | "scale") {
                answers.push(send(&self.client, "GET", &format!("{}/{part}", self.path(0)), &Value::Null).await);
            }
        }
        for answer in &answers {
            self.refused(answer, 404, "NotFound", &missing);
            self.names_object(answer, &self.name(0));
        }
    }

    pub(super) async fn creates(&self) {
        let rehearsed = self.api.create(&PostParams { dry_run: true, ..PostParams::default() }, &self.object(0)).await;
        assert!(rehearsed.unwrap().metadata.uid.is_some());
        assert!(!self.is_there(0).await, "a dry run creates nothing");
        let mut unknown = self.value(0);
        unknown["unknownField"] = 1.into();
        let strict = send(&self.client, "POST", &format!("{}?fieldValidation=Strict", self.collection()), &unknown).await;
        self.refused(&strict, 400, "BadRequest", "strict decoding error: unknown field \"unknownField\"");
        assert!(!self.is_there(0).await, "what is refused is not there");
        let made = self.create(0).await;
        let types = made.types.unwrap();
        assert_eq!((types.api_version, types.kind), (self.resource.api_version(), self.resource.kind.clone()));
        let meta = made.metadata;
        assert!(meta.uid.is_some() && meta.resource_version.is_some() && meta.creation_timestamp.is_some(), "{meta:?}");
        let again = send(&self.client, "POST", &self.collection(), &self.value(0)).await;
        self.refused(&again, 409, "AlreadyExists", &format!("{} \"{}\" already exists", self.resource.qualified(), self.name(0)));
        self.names_object(&again, &self.name(0));
        if objects::is_named_freely(&self.resource.group, &self.resource.plural) {
            self.generates_names().await;
        }
    }

    async fn generates_names(&self) {
        let mut object = self.object(1);
        object.metadata.name = None;
        object.metadata.generate_name = Some("generated-".into());
        let made = self.api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await.unwrap();
        let name = made.metadata.name.unwrap();
        assert!(name.starts_with("generated-") && name.len() == "generated-".len() + 5, "{name}");
        object.metadata.generate_name = None;
        let nameless = send(&self.client, "POST", &self.collection(), &serde_json::to_value(&object).unwrap()).await;
        self.refused(&nameless, 422, "Invalid", "name or generateName is required");
    }

    pub(super) async fn reads(&self) {
        self.create(1).await;
        let ours = ListParams::default().labels("contract=yes");
        let names = |list: &[String]| assert_eq!(list, [self.name(0), self.name(1)]);
        let both = self.api.list(&ours).await.unwrap();
        names(&both.items.iter().map(|object| object.metadata.name.clone().unwrap()).collect::<Vec<_>>());
        let (listed, single, partial) = self.of_one_version(&ours).await;
        assert_eq!(single.metadata, listed.metadata, "get and list show the same");
        assert_eq!(single.data, listed.data, "get and list show the same");
        assert_eq!((partial.types.unwrap().kind.as_str(), &partial.metadata), ("PartialObjectMetadata", &single.metadata));
        let partials = self.api.list_metadata(&ours).await.unwrap();
        names(&partials.items.iter().map(|object| object.metadata.name.clone().unwrap()).collect::<Vec<_>>());
        self.pages(&ours).await;
        self.tables().await;
    }

    /// The first object from a list, from a get and from a get of its metadata. A controller may write it between them, as the status
    /// of an admission policy: then they are read again.
    async fn of_one_version(&self, ours: &ListParams) -> (DynamicObject, DynamicObject, PartialObjectMeta<DynamicObject>) {
        for _ in 0..10 {
            let mut listed = self.api.list(ours).await.unwrap().items;
            let single = self.api.get(&self.name(0)).await.unwrap();
            let partial = self.api.get_metadata(&self.name(0)).await.unwrap();
            let version = single.resource_version();
            if listed[0].resource_version() == version && partial.resource_version() == version {
                return (listed.swap_remove(0), single, partial);
            }
        }
        panic!("{} is written again and again", self.path(0));
    }

    async fn pages(&self, ours: &ListParams) {
        let first = self.api.list(&ours.clone().limit(1)).await.unwrap();
        let next = first.metadata.continue_.clone().expect("there is another page");
        // What comes later is on no page.
        self.create(2).await;
        let mut items = first.items;
        let mut next = Some(next);
        // A selector may leave the last page empty.
        while let Some(token) = next.filter(|token| !token.is_empty()) {
            let page = self.api.list(&ours.clone().limit(1).continue_token(&token)).await.unwrap();
            assert_eq!(first.metadata.resource_version, page.metadata.resource_version, "pages show one state");
            items.extend(page.items);
            next = page.metadata.continue_;
        }
        let names: Vec<_> = items.iter().map(|object| object.metadata.name.clone().unwrap()).collect();
        assert_eq!(names, [self.name(0), self.name(1)]);
        let wrong = send(&self.client, "GET", &format!("{}?limit=1&continue=nonsense", self.collection()), &Value::Null).await;
        self.refused(&wrong, 400, "BadRequest", "continue key is not valid");
    }

    async fn tables(&self) {
        let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
        let single = self.path(0);
        for (path, count) in [(format!("{}?labelSelector=contract%3Dyes", self.collection()), 3), (single, 1)] {
            let answer = ask(&self.client, "GET", &path, &accept, "").await;
            let table = &answer.body;
            assert_eq!((answer.code, &table["kind"], &table["apiVersion"]), (200, &json!("Table"), &json!("meta.k8s.io/v1")), "{}", answer.text);
            let columns = table["columnDefinitions"].as_array().unwrap();
            assert!(columns.iter().any(|column| column["name"] == "Name"), "{columns:?}");
            let rows = table["rows"].as_array().unwrap();
            assert_eq!(rows.len(), count);
            for row in rows {
                assert_eq!(row["cells"].as_array().unwrap().len(), columns.len(), "{row}");
                assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
            }
        }
    }
}
