//! A very short chaos from start to end, as `make chaos` runs it.

use std::process::Command;

use local::servers::RunDir;
use serde_json::Value;

#[test]
fn a_short_chaos_heals_and_tells_what_happened() {
    let dir = RunDir::create("test").unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_local"))
        .args(["chaos", "--seed", "5", "--minutes", "0.2", "--profile", "dev", "--out"])
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
    assert!(said.contains("Chaos of seed 5"), "{said}");

    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let figures: Value = serde_json::from_str(&read("chaos.json")).unwrap();
    for broken in ["lost", "twice", "oversold", "unexpected", "strange", "unsettled", "mended", "findings"] {
        assert_eq!(figures[broken], 0, "{broken}: {said}");
    }
    assert!(figures["faults"].as_u64() >= Some(1) && figures["acknowledged"].as_u64() > Some(100), "{figures}");
    assert!(figures["healMs"].as_u64() < Some(90_000), "{figures}");
    let requests = read("chaos-history.jsonl").lines().filter(|line| line.contains(r#""operation":"#)).count();
    assert_eq!(figures["requests"], requests);
    assert!(read("chaos.html").contains("Chaos of seed 5"));
    assert!(read("chaos-reconcile.jsonl").lines().count() >= 1);
    dir.finish(true).unwrap();
}

#[test]
fn the_seed_and_the_plan_are_printed_and_the_same_seed_has_the_same_plan() {
    let plan = |seed: &str| {
        let run =
            Command::new(env!("CARGO_BIN_EXE_local")).args(["chaos", "--dry-run", "--seed", seed]).output().unwrap();
        assert!(run.status.success());
        String::from_utf8(run.stderr).unwrap()
    };
    assert!(plan("7").starts_with("Chaos of seed 7, 5 minutes, 2 queue(s): "), "{}", plan("7"));
    assert_eq!(plan("7"), plan("7"));
    assert_ne!(plan("7").lines().nth(1), plan("8").lines().nth(1));
}
