//! The tests, one module for each thing that must hold.

mod activities_api;
mod activities_changes;
mod consumer;
mod consumer_capacity;
mod consumer_outages;
mod consumer_poison;
mod consumer_speed;
mod consumer_together;
mod crash_consumer;
mod crash_rebuild;
mod crash_reconcile;
mod crash_signup;
mod crash_surplus;
mod faults_broker;
mod faults_clock;
mod faults_messages;
mod faults_mysql;
mod faults_redis;
mod flow;
mod invoke;
mod model;
mod provision;
mod provision_cloudformation;
mod publishing;
mod publishing_outages;
mod queues;
mod queues_reconcile;
mod reconcile_archive;
mod reconcile_compare;
mod reconcile_damaged;
mod reconcile_overtaken;
mod reconcile_rebuild;
mod reconcile_relay;
mod reconcile_replay;
mod reconcile_speed;
mod reconcile_surplus;
mod reconcile_together;
mod scripts;
mod scripts_reconcile;
mod settings;
mod signup_api;
mod signup_outages;
mod signup_refusals;

/// The program that runs one event in a process of its own.
const ONCE: tests::Once = tests::Once::new(env!("CARGO_BIN_EXE_once"));
