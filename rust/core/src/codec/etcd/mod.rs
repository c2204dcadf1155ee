//! The few messages of etcd that every call of a store sends and receives, in protobuf's wire format.
//!
//! [`request`] puts write transactions together, [`answer`] reads what etcd sends back, both without an object for each
//! message. Fields that are not known are passed over, as protobuf wants it; what is not protobuf is [`Malformed`].

pub mod answer;
mod fields;
pub mod request;

pub use super::protobuf::Malformed;
