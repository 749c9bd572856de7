use serde_json::Value;
pub fn json(o:&Value,_p:&Value)->Result<Value,String>{Ok(o.clone())}
pub fn merge(o:&Value,p:&Value)->Value{let mut o=o.clone(); json_patch::merge(&mut o,p); o}
pub fn strategic(_:&crate::kinds::KindInfo,o:&Value,p:&Value)->Result<Value,String>{Ok(merge(o,p))}
