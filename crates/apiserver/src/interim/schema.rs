use serde_json::{Value,json}; use std::sync::Arc; use crate::kinds::{KINDS,KindInfo};
pub struct Checked{pub value:Value,pub warnings:Vec<String>}
pub fn decode_check(_:&crate::kinds::KindInfo,v:Value,_:bool)->Result<Checked,String>{Ok(Checked{value:v,warnings:vec![]})}
fn groups()->Vec<&'static str>{let mut g:Vec<&str>=vec![];for k in KINDS{if !k.group.is_empty()&&!g.contains(&k.group){g.push(k.group)}}g}
fn scope(k:&KindInfo)->&'static str{if k.namespaced{"Namespaced"}else{"Cluster"}}
pub fn discovery_aggregated(legacy:bool)->Value{
 let one=|g:&str|{let res:Vec<Value>=KINDS.iter().filter(|k|k.group==g).map(|k|{
   let subs:Vec<Value>=k.subresources.iter().map(|s|json!({"subresource":s,"responseKind":{"group":if *s=="scale"{"autoscaling"}else{""},"version":"","kind":if *s=="scale"{"Scale"}else{k.kind}},"verbs":["get","patch","update"]})).collect();
   json!({"resource":k.plural,"responseKind":{"group":"","version":"","kind":k.kind},"scope":scope(k),"singularResource":k.singular,"verbs":k.verbs,"shortNames":k.short_names,"categories":k.categories,"subresources":subs})}).collect();
   json!({"metadata":{"name":g,"creationTimestamp":null},"versions":[{"version":"v1","resources":res,"freshness":"Current"}]})};
 let items:Vec<Value>=if legacy{vec![one("")]}else{groups().into_iter().map(one).collect()};
 json!({"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":items})}
pub fn discovery_api_versions(a:&str)->Value{json!({"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":a}]})}
pub fn discovery_group_list()->Value{json!({"kind":"APIGroupList","apiVersion":"v1","groups":groups().into_iter().filter_map(discovery_group).collect::<Vec<_>>()})}
pub fn discovery_resource_list(g:&str,v:&str)->Option<Value>{ if v!="v1"||!(g.is_empty()||groups().contains(&g)){return None}
 let gv=if g.is_empty(){"v1".to_string()}else{format!("{g}/v1")};
 let res:Vec<Value>=KINDS.iter().filter(|k|k.group==g).map(|k|json!({"name":k.plural,"singularName":k.singular,"namespaced":k.namespaced,"kind":k.kind,"verbs":k.verbs,"shortNames":k.short_names})).collect();
 Some(json!({"kind":"APIResourceList","apiVersion":"v1","groupVersion":gv,"resources":res}))}
pub fn discovery_group(g:&str)->Option<Value>{ if !groups().contains(&g){return None} let v=json!({"groupVersion":format!("{g}/v1"),"version":"v1"}); Some(json!({"kind":"APIGroup","apiVersion":"v1","name":g,"versions":[v],"preferredVersion":v}))}
pub fn openapi_v3_index()->Value{json!({"paths":{}})}
pub fn openapi_v3(_:&str,_:&str)->Option<Arc<Vec<u8>>>{None}
