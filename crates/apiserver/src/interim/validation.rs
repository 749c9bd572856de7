use serde_json::Value;
#[derive(Clone,Debug)] pub struct FieldError{pub kind:&'static str,pub field:String,pub bad_value:Value,pub detail:String}
impl FieldError{ pub fn invalid(f:&str,v:Value,d:&str)->Self{Self{kind:"Invalid value",field:f.into(),bad_value:v,detail:d.into()}}
pub fn internal(f:&str,d:&str)->Self{Self{kind:"Internal error",field:f.into(),bad_value:Value::Null,detail:d.into()}}
pub fn reason(&self)->&'static str{"FieldValueInvalid"} pub fn body(&self)->String{format!("{}: {}: {}",self.kind,self.bad_value,self.detail)} }
impl std::fmt::Display for FieldError{fn fmt(&self,f:&mut std::fmt::Formatter<'_>)->std::fmt::Result{write!(f,"{}: {}",self.field,self.body())}}
pub fn create(_:&crate::kinds::KindInfo,_:&Value)->Vec<FieldError>{vec![]}
pub fn update(_:&crate::kinds::KindInfo,_:&Value,_:&Value)->Vec<FieldError>{vec![]}
