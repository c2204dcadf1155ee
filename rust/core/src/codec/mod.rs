//! The messages of etcd and ZooKeeper that every call of a store sends and receives.

pub mod etcd;
pub mod key;
pub mod protobuf;
pub mod zookeeper;
