//! Who comes: everyone follows from the seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Plan;

/// When a connection is cut after the request began: this long, doubled up to [`CUT_DOUBLINGS`] times. From hardly sent
/// to probably answered, as often early as late.
const CUT_AFTER: Duration = Duration::from_micros(250);
const CUT_DOUBLINGS: f64 = 6.5;

/// Someone who wants a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// A UUID, as identity providers hand out.
    pub user: String,
    /// Asks twice at the same moment.
    pub double_click: bool,
    /// Loses the first connection this long after asking, and whatever was said on it.
    pub cut_after: Option<Duration>,
}

/// The people of a plan, in the order in which they come.
pub fn crowd(plan: &Plan) -> impl Iterator<Item = Person> + Send + use<> {
    let Plan { double_click_share, cut_share, people, seed, .. } = *plan;
    let mut rng = StdRng::seed_from_u64(seed);
    (0..people).map(move |_| {
        let user = uuid::Builder::from_random_bytes(rng.random()).into_uuid().to_string();
        let double_click = rng.random_bool(double_click_share);
        let cut = rng.random_bool(cut_share);
        let cut_after = CUT_AFTER.mul_f64(rng.random_range(0.0..=CUT_DOUBLINGS).exp2());
        Person { user, double_click, cut_after: cut.then_some(cut_after) }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        plan: Plan,
    }

    fn plan(options: &[&str]) -> Plan {
        Command::parse_from([&["sale"], options].concat()).plan
    }

    #[test]
    fn the_same_seed_brings_the_same_people_and_another_seed_brings_others() {
        let first: Vec<_> = crowd(&plan(&["--seed", "7"])).collect();
        let again: Vec<_> = crowd(&plan(&["--seed", "7"])).collect();
        assert_eq!(first, again);
        let users: HashSet<_> = first.into_iter().map(|person| person.user).collect();
        assert_eq!(users.len(), 5_000);
        assert!(crowd(&plan(&["--seed", "8"])).all(|person| !users.contains(&person.user)));
    }

    #[test]
    fn more_people_of_one_seed_begin_with_the_same_people() {
        let few: Vec<_> = crowd(&plan(&["--people", "10"])).collect();
        let many: Vec<_> = crowd(&plan(&["--people", "20"])).take(10).collect();
        assert_eq!(few, many);
    }

    #[test]
    fn about_the_given_shares_click_twice_and_lose_their_connection() {
        let people: Vec<_> = crowd(&plan(&["--double-click-share", "0.2", "--cut-share", "0.1"])).collect();
        let twice = people.iter().filter(|person| person.double_click).count();
        let cut = people.iter().filter(|person| person.cut_after.is_some()).count();
        assert!((850..1_150).contains(&twice), "{twice}");
        assert!((400..600).contains(&cut), "{cut}");
    }

    #[test]
    fn a_share_of_nothing_and_a_share_of_all_are_exact() {
        let calm = plan(&["--double-click-share", "0", "--cut-share", "0"]);
        assert!(crowd(&calm).all(|person| !person.double_click && person.cut_after.is_none()));
        let wild = plan(&["--double-click-share", "1", "--cut-share", "1"]);
        assert!(crowd(&wild).all(|person| person.double_click && person.cut_after.is_some()));
    }

    #[test]
    fn a_person_has_an_id_that_every_system_accepts() {
        for Person { user, .. } in crowd(&plan(&["--people", "50"])) {
            assert_eq!(user.len(), 36);
            assert!(user.parse::<shared::domain::UserId>().is_ok(), "{user}");
        }
    }
}
