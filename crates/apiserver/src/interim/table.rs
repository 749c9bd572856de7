use serde_json::{Value,json};
pub fn render(_:&crate::kinds::KindInfo,items:&[Value],_:jiff::Timestamp)->Value{
 let rows:Vec<Value>=items.iter().map(|i|json!({"cells":[i["metadata"]["name"],i["metadata"]["creationTimestamp"]]})).collect();
 json!({"columnDefinitions":[{"name":"Name","type":"string","format":"name","description":"","priority":0},{"name":"Age","type":"string","format":"","description":"","priority":0}],"rows":rows})}
