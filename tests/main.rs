//! The tests, one module for each thing that must hold.

mod activities_api;
mod activities_changes;
mod consumer;
mod consumer_capacity;
mod consumer_outages;
mod consumer_poison;
mod consumer_speed;
mod consumer_together;
mod flow;
mod invoke;
mod model;
mod provision;
mod provision_cloudformation;
mod publishing;
mod publishing_outages;
mod reconcile_relay;
mod scripts;
mod settings;
mod signup_api;
mod signup_outages;
mod signup_refusals;
